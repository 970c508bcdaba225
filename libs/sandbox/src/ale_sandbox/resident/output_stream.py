"""Runs commands whose output is sent as it is written. Runs in the resident, inside the sandbox.

The host grants credit, and a piece costs its bytes and `PIECE_COST`. If a command has used up its credit, its pipes are
not read, so it blocks in its next write until the host's reader has caught up and the host grants more."""

from __future__ import annotations

import select

from ale_sandbox.resident.command import READ_BYTES, Command
from ale_sandbox.resident.frames import PIECE, PIECE_COST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_sandbox.resident.interface import Resident

LEFT_BYTES = 1 << 22
"""More than two pipes can hold: further output after a command's end must come from a background process."""


class Stream(Command):
    """A running command whose output is not stored."""

    def __init__(self, resident: Resident, call: int, pid: int, pipes: tuple[int, ...], credit: int, deadline: float):
        super().__init__(call, pid, pipes, 0, deadline)
        self.resident, self.credit, self.left = resident, credit, LEFT_BYTES
        self.names = dict(zip(pipes, (b"1", b"2"), strict=True))
        self.abandoned = False

    def room(self) -> int:
        return READ_BYTES if self.abandoned else min(READ_BYTES, self.credit - PIECE_COST)

    def keep(self, fd: int, data: bytes) -> None:
        if self.abandoned:
            return
        self.credit -= len(data) + PIECE_COST
        self.resident.send(self.call, PIECE, [self.names[fd], data])
        if self.exit_code is not None:
            self.left -= len(data)
        if self.room() < 1:
            for pipe in self.pipes:
                self.resident.poll.unregister(pipe)
            self.paused = True

    def grant(self, credit: int) -> None:
        """Add credit for bytes that the reader has taken."""
        self.credit += credit
        if self.paused and self.room() > 0:
            self.resume()

    def let_go(self) -> None:
        self.abandoned = True
        if self.paused:
            self.resume()

    def resume(self) -> None:
        """Read its pipes again."""
        self.paused = False
        for pipe in self.pipes:
            self.resident.poll.register(pipe, select.EPOLLIN)
        if self.exit_code is not None:
            self.resident.finish(self, self.exit_code)
            if self.abandoned or self.left <= 0:
                self.deadline = 0.0
