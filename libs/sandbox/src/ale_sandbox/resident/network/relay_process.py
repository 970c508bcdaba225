"""Starts the relay's process: the resident forks it as soon as it may run, and again if it was killed."""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]
import os
import time

from ale_sandbox.resident.network.network_setup import NetworkSockets
from ale_sandbox.resident.network.relay import Relay
from ale_sandbox.resident.privileges import prctl
from ale_sandbox.resident.processes import send_signal

NOBODY = 65534
PATIENCE_S = 0.1
FAILED = 1


class RelayProcess:
    """The relay's process and the sockets that it serves. Raises `OSError` if the sockets cannot be made."""

    def __init__(self, plan: list[str], gate: str, own_user: bool) -> None:
        self.sockets, self.gate, self.own_user, self.pid = NetworkSockets(plan), gate, own_user, 0
        self.failed = False
        """Whether the last process ended by an error of its own. Only a request of the host starts the next one then:
        one that cannot run must not be started again and again."""

    def start(self) -> None:
        """Fork the relay, which keeps only the network's descriptors."""
        self.pid = os.fork()
        if self.pid:
            return
        try:
            sig.set_wakeup_fd(-1)
            sig.signal(sig.SIGCHLD, sig.SIG_DFL)
            sig.signal(sig.SIGINT, sig.SIG_DFL)
            os.setsid()
            own = {0, 1, 2, *(sock.fileno() for sock in self.sockets.all())}
            for name in os.listdir("/proc/self/fd"):
                if int(name) not in own:
                    close(int(name))
            if self.own_user:
                prctl(8, 0)  # PR_SET_KEEPCAPS: it keeps no capability
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            Relay(self.sockets, self.gate).run()
        finally:
            os._exit(FAILED)

    def ended(self, status: int) -> None:
        """Take note that the process has ended; `status` is that of `waitpid`."""
        self.pid, self.failed = 0, os.waitstatus_to_exitcode(status) == FAILED

    def stop(self) -> None:
        """Give the relay a moment to send its last report; the caller then kills it."""
        send_signal(self.pid, sig.SIGTERM)
        until = time.monotonic() + PATIENCE_S
        while self.pid and time.monotonic() < until:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
            else:
                time.sleep(0.0005)


def close(fd: int) -> None:
    """Close a descriptor that may be closed already."""
    try:
        os.close(fd)
    except OSError:
        return
