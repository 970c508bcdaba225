"""A command in the sandbox: what the resident stores about it, and how a forked child becomes it."""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]  # `signal` builds enums: 3 ms of each start
import os
import resource
import time

from ale_sandbox.resident.processes import kill_below, send_signal, stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ale_sandbox.resident.interface import Resident

READ_BYTES = 1 << 16


class Command:
    """A running command: its process, its pipes and its output so far."""

    def __init__(self, call: int, pid: int, pipes: tuple[int, ...], cap: int, deadline: float) -> None:
        self.call, self.pid, self.cap, self.deadline = call, pid, cap, deadline
        self.started = time.monotonic()
        self.pipes = {fd: bytearray() for fd in pipes}
        self.buffers = list(self.pipes.values())
        self.truncated = self.timed_out = self.answered = self.paused = False
        self.exit_code: int | None = None

    def room(self) -> int:
        """Return how much of its output may be read now."""
        return READ_BYTES

    def keep(self, fd: int, data: bytes) -> None:
        """Store output up to the cap; the rest is read and dropped."""
        if self.answered:
            return
        buffer = self.pipes[fd]
        room = self.cap - len(buffer)
        buffer += data[:room]
        self.truncated = self.truncated or len(data) > room

    def let_go(self) -> None:
        """Drop the output, because nobody waits for it any more."""

    def kill(self) -> float:
        """Kill the command and its descendants; return the seconds until the next check. The command is stopped first,
        so that it stays their parent until they have ended."""
        stop(self.pid)
        kill_below(self.pid)
        send_signal(self.pid, sig.SIGKILL)
        return 3600


def become_command(
    resident: Resident, pipes: list[int], user: bytes, cwd: str, command: str, stdin: bytes, extra_env: list[bytes]
) -> NoReturn:
    """Become the command; never returns."""
    try:
        sig.set_wakeup_fd(-1)
        for number in (sig.SIGCHLD, sig.SIGPIPE, sig.SIGXFSZ):
            sig.signal(number, sig.SIG_DFL)
        os.setsid()
        offer_to_oom_killer()
        source = os.memfd_create("stdin") if stdin else os.open("/dev/null", os.O_RDONLY)
        if stdin:
            view = memoryview(stdin)
            while view:
                view = view[os.write(source, view) :]
            os.lseek(source, 0, 0)
        os.dup2(source, 0)
        os.dup2(pipes[1], 1)
        os.dup2(pipes[3], 2)
        if resident.rlimits:
            set_rlimits(resident.rlimits)
        resident.rights.become(user)
        os.umask(0o022)
        env = resident.env | environment(extra_env)
        os.chdir(os.path.join(resident.workdir, cwd))
        env[b"PWD"] = os.fsencode(os.getcwd())
        os.execve(resident.shell, [os.path.basename(resident.shell), "-c", command], env)
    except OSError as error:
        os.write(2, f"The sandbox cannot run the command in {cwd!r}: {error.strerror or error}.\n".encode())
    finally:
        os._exit(1)


def offer_to_oom_killer() -> None:
    """Make the kernel kill a command and not the resident when memory runs out."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"500")
        os.close(fd)
    except OSError:
        return


def environment(pairs: list[bytes]) -> dict[bytes, bytes]:
    """Parse `NAME=value` strings into a mapping."""
    return {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}


def set_rlimits(limits: dict[str, int]) -> None:
    """Set per-process limits, which are used if there are no cgroups."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
