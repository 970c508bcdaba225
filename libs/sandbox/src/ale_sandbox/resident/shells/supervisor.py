"""The process above a persistent shell. Forked from the resident, inside the sandbox.

It starts the shell on request, reports its end and adopts its orphans, so everything that a shell ever started stays
below one process and can be distinguished from what others started. It runs as the shell's user, who can kill it but
not trace it, because it is a fork of the resident that never executes another program."""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]
import os
import select

from ale_sandbox.resident.command import offer_to_oom_killer, set_rlimits
from ale_sandbox.resident.privileges import prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ale_sandbox.resident.interface import Resident

PR_SET_PDEATHSIG = 1
MARKER = b"ALE_SANDBOX"
"""A provider finds processes that outlived their resident by this variable."""
LOW = (5, 6, 7, 8, 9)
"""The shell's descriptors: its state, the pipe that lets a copy take over, its text, its commands, and the pipe for its
reports."""


class Supervisor:
    """`fds` become the descriptors `LOW`; `orders` come from the resident, which gets the reports."""

    def __init__(
        self, resident: Resident, user: bytes, cwd: str, env: dict[bytes, bytes], fds: list[int], orders: int, news: int
    ) -> None:
        self.resident, self.user, self.cwd, self.env = resident, user, cwd, env
        self.fds, self.orders, self.news = fds, orders, news

    def run(self) -> NoReturn:
        """Serve until the resident is gone."""
        try:
            parent = os.getppid()
            sig.set_wakeup_fd(-1)
            for number in (sig.SIGCHLD, sig.SIGPIPE, sig.SIGXFSZ, sig.SIGINT):
                sig.signal(number, sig.SIG_DFL)
            os.setsid()
            self.keep_only_own()
            self.resident.rights.become(self.user)
            prctl(PR_SET_PDEATHSIG, sig.SIGKILL)
            while os.getppid() == parent and (order := os.read(self.orders, 64)):
                self.follow(order.split())
        finally:
            os._exit(1)

    def keep_only_own(self) -> None:
        """Close the resident's descriptors, and move the own ones away from the shell's numbers."""
        high = max(40, *self.fds, self.orders, self.news) + 1
        moved = [os.dup2(fd, high + i, inheritable=False) for i, fd in enumerate((*self.fds, self.orders, self.news))]
        *self.fds, self.orders, self.news = moved
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) not in moved:
                try:
                    os.close(int(name))
                except OSError:
                    continue

    def follow(self, order: list[bytes]) -> None:
        """Start a shell and wait for its end: a new one, one with a saved state, or a copy that takes over."""
        for fd in (self.fds[1], self.fds[3]):  # what the previous shell did not read
            while select.select([fd], [], [], 0)[0]:
                os.read(fd, 1 << 16)
        code = 1
        try:
            pid = int(order[1]) if order[0] == b"watch" else self.start(restored=order[0] == b"restore")
            self.report(b"p %d" % pid)
            code = wait_for_exit(pid)
        except OSError as error:
            reason = f"The sandbox cannot start a process: {error.strerror} (the limit of processes is reached)."
            self.report(b"f " + reason.encode())
        self.report(b"x %d" % code)

    def start(self, *, restored: bool) -> int:
        """Fork the shell, which reads the saved state if `restored`."""
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            offer_to_oom_killer()
            null = os.open("/dev/null", os.O_RDWR)
            for fd, low in ((null, 1), (null, 2), (self.fds[3], 0), *zip(self.fds, LOW, strict=True)):
                os.dup2(fd, low)
            if self.resident.rlimits:
                set_rlimits(self.resident.rlimits)
            os.umask(0o022)
            try:
                os.chdir(os.path.join(self.resident.workdir, self.cwd))
            except OSError:
                if not restored:
                    raise
            if restored:  # the state holds the exported variables, but not which were removed
                env = {name: value for name, value in self.env.items() if name == MARKER}
            else:
                env = self.env | {b"PWD": os.fsencode(os.getcwd())}
            shell = self.resident.shell
            os.execve(shell, [os.path.basename(shell), "-s"], env)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.report(f"f The sandbox cannot run a shell in {self.cwd!a}: {reason}.".encode())
        finally:
            os._exit(1)

    def report(self, line: bytes) -> None:
        """Send the resident a report in one write."""
        os.write(self.news, line[:1000] + b"\n")


def wait_for_exit(pid: int) -> int:
    """Wait for a child and return its exit code; collect other children meanwhile."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
        while found != pid:
            found, status = os.wait()
    except ChildProcessError:
        return 137
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
