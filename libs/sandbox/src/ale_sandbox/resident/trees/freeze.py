"""Stops all processes of the sandbox while a snapshot is taken. Runs in the resident, inside the sandbox.

Processes notice the stop only if they look for it: children continue before their parents, who then have nothing to
collect. Processes that the agent itself had stopped stay stopped."""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]  # `signal` builds enums: 3 ms of each start
import os
import time

from ale_sandbox.resident.processes import parents, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ale_sandbox.resident.command import Command

SETTLE_S = 0.2
"""How long a stop may take: a process first finishes a running write."""
LONGEST_S = 10
"""No process is stopped for longer, whatever the host does."""


class Freeze:
    """Lasts from its creation until `close`. The time-outs of stopped commands are extended by that time."""

    def __init__(self, commands: Iterable[Command]) -> None:
        now = time.monotonic()
        self.commands = [(command, command.deadline - now) for command in commands if command.exit_code is None]
        for command, _ in self.commands:
            command.deadline = now + 3600
        self.before = stop_others()
        sig.signal(sig.SIGALRM, lambda *_: self.close())
        sig.alarm(LONGEST_S)

    def close(self) -> None:
        """Let all processes continue. Idempotent."""
        sig.alarm(0)
        sig.signal(sig.SIGALRM, sig.SIG_DFL)
        now = time.monotonic()
        for command, left_s in self.commands:
            if command.exit_code is None and not command.timed_out:
                command.deadline = now + left_s
        if self.before is not None:
            resume(self.before)
        self.commands, self.before = [], None


def stop_others() -> set[int] | None:
    """Stop all running processes; return those already stopped. Does nothing and returns None if this is not the
    sandbox's first process."""
    if os.getpid() != 1:
        return None
    before = {pid for pid in parents() if pid != 1 and is_stopped(pid)}
    send_signal(-1, sig.SIGSTOP)
    until = time.monotonic() + SETTLE_S
    seen: set[int] = set()
    # A process in the middle of a fork stops after it, and only then can its (stopped) child be seen.
    while time.monotonic() < until:
        now = parents().keys() - {1}
        if now == seen and all(map(is_stopped, now)):
            break
        seen = now
        time.sleep(0.0005)
    return before


def resume(before: set[int]) -> None:
    """Let all processes continue that were not stopped before, children first."""
    above = parents()

    def depth(pid: int) -> int:
        steps = 0
        while pid in above and steps < len(above):
            pid, steps = above[pid], steps + 1
        return steps

    for pid in sorted(above.keys() - before - {1}, key=depth, reverse=True):
        send_signal(pid, sig.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped or gone."""
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
