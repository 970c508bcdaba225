"""Whether memory ran out in a sandbox: what its control group counts, read when the sandbox is suddenly gone.

An agent can fill its memory in a way that leaves the kernel nothing to end but the resident. That is no fault of the machine,
and a rollout must not be made anew for it.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
FILES = ("memory.events", "memory.oom_control")
"""Of control groups version 2 and version 1."""
COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


class MemoryWatch:
    """The count of processes of a sandbox that the kernel ended for want of memory."""

    def __init__(self, groups: Iterable[Path]) -> None:
        self._fd = -1
        for path in (group / name for group in groups for name in FILES):
            with suppress(OSError):
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return

    def kills(self) -> int:
        """How many there were; 0 where it is not known."""
        if self._fd < 0:
            return 0
        with suppress(OSError):  # the group is gone
            found = COUNT.search(os.pread(self._fd, 4096, 0))
            return int(found[1]) if found else 0
        return 0

    def close(self) -> None:
        """Look no more. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def peer(sock: socket.socket) -> int:
    """The number of the process at the other end of a Unix socket."""
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")


def groups_of(pid: int) -> list[Path]:
    """The control groups of a process that count memory."""
    found: list[Path] = []
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if not controllers:
                found.append(MOUNT / place.lstrip("/"))
            elif "memory" in controllers.split(","):
                found.append(MOUNT / "memory" / place.lstrip("/"))
    return found
