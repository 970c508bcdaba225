"""One plugin, imported in a process of its own: what only an import can show, and nothing that it does can reach us.

`probe` starts `python -m ale.probe KIND PACKAGE:NAME FILE`, which imports the plugin and writes what it found to the
file as JSON. Whatever the plugin prints, raises, ends or waits for, it does there; the parent waits no longer than the
time limit and then ends the child with all that it started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import warnings
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ale.errors import AleError
from ale.installed import PluginInfo
from ale.specs.kinds import CAPABILITIES
from ale.validation import describe, nearest, one_line
from ale.versions import ContractDeprecation

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Probed:
    """What an import showed. `problem` is a sentence, None where there is none; the rest is empty where it failed."""

    problem: str | None = None
    warnings: tuple[str, ...] = ()
    location: str = ""
    api_version: str = ""
    capabilities: tuple[str, ...] = ()
    config: tuple[tuple[str, ...], ...] = ()
    """Rows of (key, type, default, meaning)."""
    schema: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the plugin's `Config`."""


async def probe(info: PluginInfo, timeout_s: float = TIMEOUT_S) -> Probed:
    """Import a plugin in a child process and say what came of it."""
    with tempfile.TemporaryDirectory(prefix="ale-probe-") as folder, ExitStack() as files:
        stdout, stderr = (files.enter_context(path.open("wb")) for path in _paths(folder)[1:])
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ale.probe", info.kind, f"{info.package}:{info.name}", str(_paths(folder)[0]),
            stdin=asyncio.subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout_s):
                code = await child.wait()
        except TimeoutError:
            return Probed(f"Its import is not done after {timeout_s:g} s and was ended; something in it waits.")
        finally:
            with suppress(ProcessLookupError):  # also what the import started and left running
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
        return _told(folder, code)


def _paths(folder: str) -> tuple[Path, Path, Path]:
    return Path(folder, "outcome.json"), Path(folder, "stdout"), Path(folder, "stderr")


def _told(folder: str, code: int) -> Probed:
    """What a child that has ended wrote and printed."""
    outcome, stdout, stderr = _paths(folder)
    if not outcome.exists():
        last = _lines(stderr)[-1:]
        return Probed(f"Its import ended the process with exit code {code}{f' ({last[0][:200]})' if last else ''}.")
    found = json.loads(outcome.read_text())
    garbage = _lines(stdout)[:1]
    if garbage and found["problem"] is None:
        found["problem"] = f"It prints on import, which spoils what others print: {garbage[0][:80]!r}."
    rows = tuple(map(tuple, found.pop("config")))
    return Probed(**{**found, "config": rows, **{k: tuple(found[k]) for k in ("warnings", "capabilities")}})


def _lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        text = file.read(1 << 16).decode("utf-8", "replace")
    return [line for raw in text.splitlines() if (line := "".join(c for c in raw if c.isprintable()).strip())]


def examine(kind: str, name: str) -> Probed:
    """In the child: load the plugin and look at what the registry demands and what the manifest says."""
    from ale.plugins import find_plugin, load_driver_class

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ContractDeprecation)
        try:
            info = find_plugin(kind, name)
            cls = load_driver_class(kind, name)
        except AleError as error:
            return Probed(str(error).removeprefix(f"{kind}: "))
    told = tuple(one_line(w.message) + "." for w in caught if issubclass(w.category, ContractDeprecation))
    capabilities = tuple(sorted(cls.capabilities))
    module = sys.modules[cls.__module__ if cls.__module__ != "ale.plugins" else info.target.partition(":")[0]]
    return Probed(
        _disagreement(info, capabilities), told, str(getattr(module, "__file__", "")), str(cls.api_version),
        capabilities, tuple(describe(cls.Config)), cls.Config.model_json_schema(),
    )  # fmt: skip


def _disagreement(info: PluginInfo, capabilities: tuple[str, ...]) -> str | None:
    """Where the class says something else than the manifest, by which runs choose, or uses a word that nobody knows."""
    if set(capabilities) != set(info.capabilities):
        return (
            f"Its class can do {', '.join(capabilities) or 'nothing special'}, its ale-plugin.json says "
            f"{', '.join(sorted(info.capabilities)) or 'nothing'}; write the same into both."
        )
    known = CAPABILITIES[info.kind]
    for word in capabilities:
        if word not in known and "." not in word:
            return (
                f"There is no capability '{word}' of kind {info.kind}.{nearest(word, known)} "
                "One of the plugin's own has a dot, such as 'acme.migrate'."
            )
    return None


if __name__ == "__main__":
    from ale.probe import examine as _examine  # by its own name, so that what it makes is what the importer knows

    _found = json.dumps(asdict(_examine(sys.argv[1], sys.argv[2])))
    Path(sys.argv[3]).write_text(_found)
    sys.stdout.flush()
    os._exit(0)  # threads that the plugin left cannot hold it
