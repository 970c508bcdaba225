"""What this machine has, and how much of it is in use, as Linux reports it in files."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ale_rock.worker.settings import WorkerSettings

MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker offers to sandboxes."""

    cpus: float
    memory_bytes: int
    disk_bytes: int
    gpus: int


def capacity(settings: WorkerSettings) -> Capacity:
    """Return what the settings name, and for the rest what the machine has."""
    gpus = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir("/dev"))
    return Capacity(
        settings.cpus or float(len(os.sched_getaffinity(0))),
        settings.memory_bytes or _meminfo()["MemTotal"],
        settings.disk_bytes or max(1, disk_free_bytes(settings)),
        gpus if settings.gpus is None else settings.gpus,
    )


def memory_used_bytes(offered: int | None) -> int:
    """Return the memory that cannot be given to a new program; where only a part of the memory is offered, the same
    share of that part."""
    found = _meminfo()
    used = max(0, found["MemTotal"] - found["MemAvailable"])
    return used if offered is None else used * offered // found["MemTotal"]


def disk_free_bytes(settings: WorkerSettings) -> int:
    """Return the free bytes of the disk on which uploads arrive, which is that of most sandboxes' files, too."""
    return shutil.disk_usage(settings.spool_folder).free


def cpu_load() -> float:
    """Return the load average of the last minute: processes that ran or waited for a core."""
    return os.getloadavg()[0]


def _meminfo() -> dict[str, int]:
    lines = (line.split() for line in MEMINFO.read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) << 10 for fields in lines if len(fields) == 3}
