"""`ale doctor`: what is installed here and whether it works, in one paste for a bug report.

1. This process imports nothing that may break: each check runs in a process of its own (`doctor_child.py`), which may
   hang, crash or print what it likes. It is killed after a time limit, and what it had found until then is kept.
2. The core checks the machine and the packages (`doctor_checks.py`). Packages bring the checks of what only they know,
   such as container engines or GPUs, through the entry-point group `ale.doctor`: a function without arguments that
   returns, or yields, `Finding`s.
3. Texts are made fit for a public place: values of environment variables that may be secret, user names and passwords
   in addresses, and the home folder are replaced.

It lies in the core, so that it works where little else does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from threading import Event
from typing import IO, Any, Literal

from ale.registry.packages import our_packages

GROUP = "ale.doctor"
TIMEOUT_S, POLL_S, KILL_S, AT_ONCE = 45.0, 0.1, 2.0, 3
MOST_TIMES, MOST_FAULTS = 4, 3
"""How often the time limit a process may go on while it reports something, and how many imports may end badly."""
MARKS = {"ok": "ok     ", "missing": "missing", "broken": "BROKEN ", "info": "       "}
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|PROXY|_HOST$|_URL$|_URI$|DSN", re.IGNORECASE)
State = Literal["ok", "missing", "broken", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `mend` says what to do, where something is missing or broken."""

    name: str
    state: State
    text: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """The findings of one check."""

    title: str
    findings: tuple[Finding, ...]


def doctor(as_json: bool = False, timeout_s: float = TIMEOUT_S) -> int:
    """Print the report; returns 1 if something is broken, else 0."""
    sections = []
    for section in examine(timeout_s):
        sections.append(section)
        if not as_json:
            print("\n".join([section.title, *map(_line, section.findings), ""]), flush=True)
    if as_json:
        print(json.dumps([asdict(section) for section in sections], indent=1))
    return int(any(finding.state == "broken" for section in sections for finding in section.findings))


def examine(timeout_s: float = TIMEOUT_S) -> Iterator[Section]:
    """Make all checks, some at the same time, and yield their findings in a fixed order."""
    own = [("machine", "ale.cli.doctor_checks:check_machine"), ("packages", "ale.cli.doctor_checks:check_packages")]
    children = Children(timeout_s)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            imports = pool.submit(check_imports, children)
            found = [(title, pool.submit(run_check, target, children)) for title, target in (*own, *_brought_checks())]
            for title, future in (*found[:2], ("imports", imports), *found[2:]):
                yield Section(title, tuple(map(_without_secrets, future.result())))
        finally:  # by Ctrl-C too, or if nobody reads on
            children.stopped.set()


def _brought_checks() -> list[tuple[str, str]]:
    """Return the checks that packages bring: title, `module:name`."""
    found = set()
    for distribution in metadata.distributions():
        with suppress(Exception):  # whatever the files of another package contain
            found |= {(entry.name, entry.value) for entry in distribution.entry_points if entry.group == GROUP}
    return sorted(found)


def run_check(target: str, children: Children) -> list[Finding]:
    """Run a check in a process of its own. If it ends badly, the last finding says so."""
    lines, fault = children.run("check", target)
    found = [Finding(**line) for line in lines]
    return [*found, Finding(target, "broken", f"the check {fault}")] if fault else found


def check_imports(children: Children) -> list[Finding]:
    """Import what the packages of ALE bring, all in one process; if one ends it, another goes on with the rest."""
    left, broken = imported_targets(), list[Finding]()
    count, faults = len(left), 0
    while left and faults < MOST_FAULTS:
        lines, fault = children.run("import", *(f"{package}={target}" for package, target in left))
        broken += [Finding(**line) for line in lines if line["state"] == "broken"]
        if not fault:
            left = []
            break
        faults += 1
        package, target = left[min(len(lines), len(left) - 1)]
        mend = f"pip install --force-reinstall {package}"
        broken.append(Finding(package, "broken", f"importing {target} {fault}", mend))
        left = left[len(lines) + 1 :]
    if left:
        broken.append(Finding("imports", "broken", f"{len(left)} more were not tried"))
    return broken or [Finding("imports", "ok", f"{count} plugins and commands can be imported")]


def imported_targets() -> list[tuple[str, str]]:
    """Return what can be imported of the packages of ALE: (package, `module:name`), of each module one."""
    found: dict[str, tuple[str, str]] = {}
    for package in our_packages():
        distribution = find_distribution(package)
        if distribution is None:
            continue
        entries = [entry for entry in distribution.entry_points if entry.group.startswith("ale.")]
        targets = [entry.value for entry in entries] or [package.replace("-", "_")]
        for target in targets:
            module = target.partition(":")[0]
            if entries or find_spec(module) is not None:
                found.setdefault(module, (package, target))
    return list(found.values())


def find_distribution(name: str) -> metadata.Distribution | None:
    """Return an installed package; None if it is not installed."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


class Children:
    """The processes in which checks run. Each may be silent for `timeout_s` at most; `stopped` ends all of them."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.stopped = Event()

    def run(self, *arguments: str) -> tuple[list[dict[str, Any]], str]:
        """Run `doctor_child` and return the lines that it wrote, and how it ended if that was badly."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            # Files in place of pipes: nobody waits for a grandchild that keeps one open.
            child = subprocess.Popen(
                [sys.executable, "-m", "ale.cli.doctor_child", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                fault = self._wait(child, out, err)
            finally:
                with suppress(OSError):
                    os.killpg(child.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel, and is then left alone
                    child.wait(KILL_S)
            out.seek(0)
            return [json.loads(line) for line in out.read().split("\n")[:-1]], fault

    def _wait(self, child: subprocess.Popen[bytes], out: IO[str], err: IO[str]) -> str:
        """Return how it ended if that was badly."""
        began = heard = time.monotonic()
        size = 0
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = child.wait(POLL_S)
                return _describe_end(code, err) if code else ""
            now, grown = time.monotonic(), os.fstat(out.fileno()).st_size
            if grown != size:
                size, heard = grown, now
            if self.stopped.is_set():
                return "was interrupted"
            if now - heard > self.timeout_s or now - began > MOST_TIMES * self.timeout_s:
                return f"did not end within {self.timeout_s:g} s"


def _describe_end(code: int, err: IO[str]) -> str:
    err.seek(0)
    last = (err.read().strip().splitlines() or [""])[-1][:200]
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"{how} ({last})" if last else how


def _without_secrets(finding: Finding) -> Finding:
    return Finding(finding.name, finding.state, clean(finding.text), clean(finding.mend))


def clean(text: str) -> str:
    """Return a text on one line, without values of environment variables that may be secret, and without names."""
    for name, value in os.environ.items():
        if len(value) >= 6 and _SECRET.search(name):
            text = text.replace(value, f"${name}")
    text = re.sub(r"://[^/@\s]+@", "://***@", text)
    home = os.path.expanduser("~")
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/\s:'\")\]]|$)", "~", text)
    return "".join(c if c.isprintable() else " " for c in text)


def _line(finding: Finding) -> str:
    mend = f". Mend: {finding.mend}" if finding.mend else ""
    return f"  {MARKS[finding.state]} {finding.name}: {finding.text}{mend}"
