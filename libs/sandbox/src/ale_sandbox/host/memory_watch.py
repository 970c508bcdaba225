"""Finds out whether a sandbox ran out of memory: reads its control group's counter when the sandbox suddenly ends.

An agent can fill its memory in a way that leaves the kernel nothing to kill but the resident. That is not the machine's
fault, so the rollout must not be repeated for it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
FILES = ("memory.events", "memory.oom_control")
"""The counter's file in control groups of version 2 and of version 1."""
COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


class MemoryWatch:
    """Counts the processes of a sandbox that the kernel killed because memory ran out."""

    def __init__(self, groups: Iterable[Path]) -> None:
        self._fd = -1
        for path in (group / name for group in groups for name in FILES):
            with suppress(OSError):
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return

    def kills(self) -> int:
        """Return how many there were; 0 if it is not known."""
        if self._fd < 0:
            return 0
        with suppress(OSError):  # the group is gone
            found = COUNT.search(os.pread(self._fd, 4096, 0))
            return int(found[1]) if found else 0
        return 0

    def close(self) -> None:
        """Stop watching. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def peer_pid(sock: socket.socket) -> int:
    """Return the id of the process at the other end of a Unix socket."""
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")


def groups_of(pid: int) -> list[Path]:
    """Find the control groups of a process that count memory."""
    found: list[Path] = []
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if not controllers:
                found.append(MOUNT / place.lstrip("/"))
            elif "memory" in controllers.split(","):
                found.append(MOUNT / "memory" / place.lstrip("/"))
    return found
