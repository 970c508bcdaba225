"""Stops every process of the sandbox for a moment, so that a snapshot is of one moment. Used by the resident, inside.

Stopping by signal is seen by nobody who does not look for it: children go on before their parents, who then have nothing
to collect. What the agent itself had stopped stays stopped.
"""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]  # `signal` builds enums: 3 ms of each start
import os
import time

from ale_resident.inside.tree import parents, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ale_resident.inside.resident import Command

SETTLE_S = 0.2
"""How long a stop may take: a process in the middle of a write ends that first."""
LONGEST_S = 10
"""For longer nothing is held up, whatever the host does."""


class Standstill:
    """Lasts from its making until `close`. The time-outs of the commands that stand still wait too."""

    def __init__(self, commands: Iterable[Command]) -> None:
        now = time.monotonic()
        self.commands = [(command, command.deadline - now) for command in commands if command.exit_code is None]
        for command, _ in self.commands:
            command.deadline = now + 3600
        self.before = stop_others()
        sig.signal(sig.SIGALRM, lambda *_: self.close())
        sig.alarm(LONGEST_S)

    def close(self) -> None:
        """Let everything go on. Idempotent."""
        sig.alarm(0)
        sig.signal(sig.SIGALRM, sig.SIG_DFL)
        now = time.monotonic()
        for command, left_s in self.commands:
            if command.exit_code is None and not command.timed_out:
                command.deadline = now + left_s
        if self.before is not None:
            let_go(self.before)
        self.commands, self.before = [], None


def stop_others() -> set[int] | None:
    """Stop all that runs; what stood still before. None where this is not the sandbox's first process: then nothing is done."""
    if os.getpid() != 1:
        return None
    before = {pid for pid in parents() if pid != 1 and stands(pid)}
    send_signal(-1, sig.SIGSTOP)
    until = time.monotonic() + SETTLE_S
    seen: set[int] = set()
    # What is in the middle of a fork stops after it, and its child, which comes to be stopped, is seen only then.
    while time.monotonic() < until:
        now = parents().keys() - {1}
        if now == seen and all(map(stands, now)):
            break
        seen = now
        time.sleep(0.0005)
    return before


def let_go(before: set[int]) -> None:
    """Let everything go on that did not stand still before, children first."""
    above = parents()

    def depth(pid: int) -> int:
        steps = 0
        while pid in above and steps < len(above):
            pid, steps = above[pid], steps + 1
        return steps

    for pid in sorted(above.keys() - before - {1}, key=depth, reverse=True):
        send_signal(pid, sig.SIGCONT)


def stands(pid: int) -> bool:
    """Whether a process stands still; one that is gone does."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return os.read(fd, 512).rsplit(b")", 1)[1].split()[0] not in (b"R", b"S", b"D")
    except (OSError, IndexError):
        return True
    finally:
        os.close(fd)
