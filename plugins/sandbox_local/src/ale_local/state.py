"""What a provider leaves on disk so that another process can list it, and remove it when its owner was killed.

One folder a user in the temporary folder, one small JSON a sandbox. A process is named by its id *and* its start
time, for ids are used again.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ale_local import cgroups
from ale_resident.owner import reclaim_bases, remove_folder, start_time

MARKER = "ALE_SANDBOX"
"""Environment variable that names the sandbox of a process; finds what a plain sandbox left behind."""

CLAIM_S = 60.0
"""An id whose record is still empty after this long was claimed by a process that died in that very moment."""


@dataclass(frozen=True)
class Record:
    """A sandbox, as written to its JSON."""

    id: str
    pid: int
    start_time: int
    owner_pid: int
    owner_start_time: int
    created_at: float
    labels: dict[str, str] = field(default_factory=dict)
    cgroups: list[str] = field(default_factory=list)
    folder: str | None = None

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return start_time(self.pid) == self.start_time != 0

    @property
    def owned(self) -> bool:
        """Whether the process that started it runs."""
        return start_time(self.owner_pid) == self.owner_start_time


RECORD_BYTES = 2048


def write(folder: Path, record: Record) -> None:
    """Put a record down, in place.

    Not by renaming a new file over the old one, nor by cutting the old one short: both make some file systems flush
    to disk, which costs more than starting the sandbox. Records are padded to one size instead, and written in one go.
    """
    data = json.dumps(asdict(record)).encode().ljust(RECORD_BYTES)
    fd = os.open(folder / f"{record.id}.json", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def resident_pid(pid: int) -> int:
    """The resident's process: the child of bubblewrap's outer one; without bubblewrap, the started process itself.

    That one is to be killed: it takes the namespace along, which the outer process, being another user, cannot.
    """
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return int(children[0]) if children else pid


def read(folder: Path, sandbox_id: str) -> Record | None:
    """A record; None where there is none or it was cut short."""
    try:
        return Record(**json.loads((folder / f"{sandbox_id}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def read_all(folder: Path) -> list[Record]:
    """All records, oldest first."""
    found = [read(folder, path.stem) for path in folder.glob("*.json")]
    return sorted((r for r in found if r is not None), key=lambda r: r.created_at)


def kill_marked(sandbox_id: str) -> int:
    """Kill every process whose environment carries the sandbox's marker; how many there were."""
    marker, killed = f"{MARKER}={sandbox_id}".encode(), 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = Path(entry.path, "environ").read_bytes().split(b"\0")
                if marker in environment and start_time(int(entry.name)):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed += 1
            except OSError:
                continue
    return killed


def erase(folder: Path, record: Record, timeout_s: float = 5.0) -> None:
    """End a sandbox from outside and take away everything that belongs to it. Blocks; idempotent."""
    until = time.monotonic() + timeout_s
    if record.alive:
        os.kill(record.pid, signal.SIGKILL)
    while record.alive and time.monotonic() < until:
        time.sleep(0.002)
    while record.folder is not None and kill_marked(record.id) and time.monotonic() < until:
        time.sleep(0.005)
    cgroups.remove(record.cgroups, until)
    if record.folder is not None:
        remove_folder(Path(record.folder))
    (folder / f"{record.id}.json").unlink(missing_ok=True)


def reclaim(folder: Path) -> list[str]:
    """Erase what belongs to owners that are gone; the ids of the sandboxes."""
    stale = [record for record in read_all(folder) if not record.owned]
    for record in stale:
        erase(folder, record)
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):  # its owner took it away meanwhile
            if read(folder, path.stem) is None and time.time() - path.stat().st_mtime > CLAIM_S:
                path.unlink()
    reclaim_bases(folder)
    for path in folder.glob("*.part"):
        if not start_time(int(path.name.split(".")[-2])):
            path.unlink(missing_ok=True)
    return [record.id for record in stale]
