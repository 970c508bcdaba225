"""Adapts Podman's checkpoints: rewrites labels and mounts for another container, and freezes containers."""

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

from ale_sandbox.containers.engine import ContainerPlan

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
    """Return whether this process may read the limits of another user's processes, as CRIU has to."""
    rights = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
    return bool(int(rights, 16) & SYS_RESOURCE)


def raise_for_status(response: Any, log: str) -> None:
    """Raise `ValueError` for a failed request, with CRIU's own message if it can be found."""
    if response.status_code < 400:
        return
    message = str(response.json().get("message", response.text))
    place = WORK_PATH.search(message)
    if place is not None:
        with suppress(OSError):
            faults = FAULT.findall(Path(place[1], log).read_text(errors="replace"))
            message = "CRIU failed: " + "; ".join(faults[-4:])
    raise ValueError(message)


def find_freezer(process: int) -> tuple[Path, str, str]:
    """Find the file that freezes a process's control group, and what to write to freeze and to thaw it. Raises
    `OSError`."""
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if "freezer" in controllers.split(","):
            return CGROUPS / "freezer" / place.lstrip("/") / "freezer.state", "FROZEN", "THAWED"
        if not controllers and (CGROUPS / place.lstrip("/") / "cgroup.freeze").exists():
            return CGROUPS / place.lstrip("/") / "cgroup.freeze", "1", "0"
    raise OSError(f"the process {process} is in no control group that can be frozen")


@contextmanager
def freeze(process: int) -> Iterator[None]:
    """Freeze a container by its first process's control group; CRIU leaves it frozen."""
    file, freeze, go_on = find_freezer(process)
    file.write_text(freeze)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):  # the container was stopped meanwhile
            file.write_text(go_on)


def thaw(process: int) -> None:
    """Let a frozen container continue. Raises `OSError`."""
    file, _, go_on = find_freezer(process)
    file.write_text(go_on)


def enable_loopback(process: int) -> None:
    """Bring the loopback device up in a restored process's network, which CRIU leaves out. Raises `OSError`."""
    enter = ["nsenter", f"--net=/proc/{process}/ns/net", sys.executable, "-I", "-S", "-c", LOOPBACK_UP]
    done = subprocess.run(enter, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise OSError(f"its loopback device stays down ({done.stderr.strip()[-200:]})")


def rewrite(archive: Path, changed: IO[bytes], plan: ContainerPlan) -> None:
    """Rewrite the archive for the plan's container. Raises `OSError`, or `ValueError` if the archive is invalid."""
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


def relabel(config: dict[str, Any], plan: ContainerPlan) -> None:
    """Another's labels."""
    config["labels"] = dict(plan.labels)


def remount(spec: dict[str, Any], plan: ContainerPlan) -> None:
    """Replace the host folders of the mounts by those of the new container."""
    sources = {inside: here for here, inside, _ in plan.mounts}
    for mount in spec["mounts"]:
        if mount["destination"] in sources:
            mount["source"] = sources[mount["destination"]]


CHANGES = {"config.dump": relabel, "spec.dump": remount}
