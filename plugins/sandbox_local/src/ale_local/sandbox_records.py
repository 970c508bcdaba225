"""Records each sandbox on disk, so that another process can list it, and remove it if its owner was killed.

Each user has one folder in the temporary folder, with one small JSON per sandbox. A process is named by its id *and*
its start time, because ids are used again.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import Resources
from ale_local import cgroups
from ale_sandbox.host.owned_folders import reclaim_bases, remove_folder, start_time

MARKER = "ALE_SANDBOX"
"""Environment variable with a process's sandbox id, by which leftovers of a plain sandbox are found."""

CLAIM_S = 60.0
"""An id whose record is still empty after this time was claimed by a process that died right then."""


@dataclass(frozen=True)
class Record:
    """A sandbox's record, as written to its JSON."""

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
        """Return whether the sandbox's process runs."""
        return start_time(self.pid) == self.start_time != 0

    @property
    def owned(self) -> bool:
        """Return whether the process that started the sandbox runs."""
        return start_time(self.owner_pid) == self.owner_start_time


RECORD_BYTES = 2048


def write(folder: Path, record: Record) -> None:
    """Write a record in place.

    Renaming a new file over the old one, or truncating the old one, makes some file systems flush to disk, which takes
    longer than starting the sandbox. So records are padded to one size and written with one call.
    """
    data = json.dumps(vars(record)).encode().ljust(RECORD_BYTES)
    fd = os.open(folder / f"{record.id}.json", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def claim(folder: Path, record: Record, groups: dict[str, Path], resources: Resources) -> None:
    """Claim a record's id, write the record, make its control groups and (without isolation) its folder. Raises
    `ConfigError` if the id is taken."""
    try:
        os.close(os.open(folder / f"{record.id}.json", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise ConfigError(
            f"A sandbox named {record.id!r} exists already; stop it, remove it or use another id."
        ) from None
    write(folder, record)
    try:
        cgroups.create(groups, record.id, resources)
        for name in ("work", "home", "tmp") if record.folder is not None else ():
            Path(record.folder or "", name).mkdir(mode=0o700, parents=True)
    except OSError as error:
        erase(folder, record)
        raise SandboxError(f"The sandbox {record.id} could not be prepared: {error}.") from error


def note_process(folder: Path, record: Record, pid: int) -> Record:
    """Add a sandbox's process to its record."""
    record = replace(record, pid=pid, start_time=start_time(pid))
    write(folder, record)
    return record


def resident_pid(pid: int) -> int:
    """Return the resident's process: the child of bubblewrap's outer process; without bubblewrap, the process itself.

    Killing it ends the namespace, which killing the outer process, as another user, would not.
    """
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return int(children[0]) if children else pid


def read(folder: Path, sandbox_id: str) -> Record | None:
    """Read a record; return None if there is none or it is incomplete."""
    try:
        return Record(**json.loads((folder / f"{sandbox_id}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def read_all(folder: Path) -> list[Record]:
    """Read all records, the oldest first."""
    found = [read(folder, path.stem) for path in folder.glob("*.json")]
    return sorted((r for r in found if r is not None), key=lambda r: r.created_at)


def kill_marked(sandbox_id: str) -> int:
    """Kill every process whose environment has the sandbox's marker; return how many there were."""
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
    """End a sandbox from outside and remove everything that belongs to it. Blocks; idempotent."""
    until = time.monotonic() + timeout_s
    if record.alive:
        with suppress(ProcessLookupError):  # it ended at this moment
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
    """Erase the sandboxes of processes that have ended; return their ids."""
    stale = [record for record in read_all(folder) if not record.owned]
    for record in stale:
        erase(folder, record)
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):  # its owner removed it meanwhile
            if read(folder, path.stem) is None and time.time() - path.stat().st_mtime > CLAIM_S:
                path.unlink()
    reclaim_bases(folder)
    for path in folder.glob("*.part"):
        if not start_time(int(path.name.split(".")[-2])):
            path.unlink(missing_ok=True)
    return [record.id for record in stale]
