"""What Podman writes of a container with processes, made another container's: its labels, and what it mounts of this machine."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ale_resident.engine import Plan

CGROUPS = Path("/sys/fs/cgroup")
SYS_RESOURCE = 1 << 24
WORK_PATH = re.compile(r"(?:--work-path |log file: )(\S+?)(?:/\w+\.log)?[\s:]")
FAULT = re.compile(r"Error \([^)]*\): (.*)")
LOOPBACK_UP = """
import fcntl, socket, struct
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
"""


def may_ask_for_limits() -> bool:
    """Whether this process has the right to ask for the limits of another user's processes, as CRIU has to."""
    rights = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
    return bool(int(rights, 16) & SYS_RESOURCE)


def raise_for_status(response: Any, log: str) -> None:
    """Raise `ValueError` for an answer that is none, with what CRIU wrote about it, where that can be found."""
    if response.status_code < 400:
        return
    said = str(response.json().get("message", response.text))
    place = WORK_PATH.search(said)
    if place is not None:
        with suppress(OSError):
            faults = FAULT.findall(Path(place[1], log).read_text(errors="replace"))
            said = "CRIU failed: " + "; ".join(faults[-4:])
    raise ValueError(said)


def freezer(process: int) -> tuple[Path, str, str]:
    """The file that freezes a process's control group, and what to write to freeze it and to let it go on. Raises `OSError`."""
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if "freezer" in controllers.split(","):
            return CGROUPS / "freezer" / place.lstrip("/") / "freezer.state", "FROZEN", "THAWED"
        if not controllers and (CGROUPS / place.lstrip("/") / "cgroup.freeze").exists():
            return CGROUPS / place.lstrip("/") / "cgroup.freeze", "1", "0"
    raise OSError(f"the process {process} is in no control group that can be frozen")


@contextmanager
def frozen(process: int) -> Iterator[None]:
    """A container in which nothing moves, by the control group of its first process. CRIU leaves it as it finds it."""
    file, freeze, go_on = freezer(process)
    file.write_text(freeze)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):  # it was stopped meanwhile
            file.write_text(go_on)


def thaw(process: int) -> None:
    """Let a container go on. Raises `OSError`."""
    file, _, go_on = freezer(process)
    file.write_text(go_on)


def raise_loopback(process: int) -> None:
    """Give the network of a process that CRIU has restored what it leaves out: that the loopback device is up. Raises `OSError`."""
    enter = ["nsenter", f"--net=/proc/{process}/ns/net", sys.executable, "-I", "-S", "-c", LOOPBACK_UP]
    done = subprocess.run(enter, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise OSError(f"its loopback device stays down ({done.stderr.strip()[-200:]})")


def rewrite(archive: Path, changed: IO[bytes], plan: Plan) -> None:
    """Write the archive anew for the container of the plan. Raises `OSError`, or `ValueError` where it is not what it should be."""
    try:
        with tarfile.open(archive) as source, tarfile.open(fileobj=changed, mode="w") as target:
            for member in source:
                file = source.extractfile(member)
                change = CHANGES.get(member.name)
                if file is not None and change is not None:
                    found = json.load(file)
                    change(found, plan)
                    data = json.dumps(found).encode()
                    member.size = len(data)
                    file = io.BytesIO(data)
                target.addfile(member, file)
    except (tarfile.TarError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{archive} is damaged ({error}); remove that snapshot and make another") from error


def relabel(config: dict[str, Any], plan: Plan) -> None:
    """Another's labels."""
    config["labels"] = dict(plan.labels)


def remount(spec: dict[str, Any], plan: Plan) -> None:
    """What stands at the same places inside, of another's folders."""
    sources = {inside: here for here, inside, _ in plan.mounts}
    for mount in spec["mounts"]:
        if mount["destination"] in sources:
            mount["source"] = sources[mount["destination"]]


CHANGES = {"config.dump": relabel, "spec.dump": remount}
