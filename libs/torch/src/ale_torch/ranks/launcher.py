"""Starts the program of the ranks (`program.py`), which imports what they need and forks them.

Usually a program is started for each group of ranks and ends with it. Within `keep_launchers()` that of a target stays,
and forks a process for each group, so that a program that starts many groups imports only once what they need
(Megatron: five seconds)."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import IO

PROGRAM = (sys.executable, "-m", "ale_torch.ranks.program")

_kept: dict[tuple[str, ...], _Kept] | None = None
"""By target and `sys.path`."""


@contextlib.contextmanager
def keep_launchers() -> Iterator[None]:
    """Within it, the launcher of a target stays for the next group; all end with it. Does nothing but on Linux."""
    global _kept
    if _kept is not None or not hasattr(os, "pidfd_open"):
        yield
        return
    _kept = {}
    try:
        yield
    finally:
        launchers, _kept = _kept, None
        for launcher in launchers.values():
            launcher.close()


def launch(target: str, fds: Sequence[int], output: IO[bytes]) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start the process that forks the ranks, one for each connection, and leads their session."""
    if _kept is not None:
        key = (target, *sys.path)
        if key in _kept and not _kept[key].runs:
            _kept.pop(key).close()
        if key not in _kept:
            _kept[key] = _Kept()
        return _kept[key].fork(target, fds, output)
    return subprocess.Popen(
        [*PROGRAM, *map(str, fds)],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C is for the owner, which ends its ranks in order
    )


class ForkedProcess:
    """A process that a kept launcher has forked; `wait` is that of `subprocess.Popen`, but for the exit code."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._end: int | None = None
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._end = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        if self._end is None:
            return
        if not wait([self._end], timeout):
            raise subprocess.TimeoutExpired(PROGRAM, timeout or 0.0)
        os.close(self._end)
        self._end = None


class _Kept:
    """A launcher that stays."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*PROGRAM, "--keep", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._socket = ours
        self._lock = threading.Lock()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def fork(self, target: str, fds: Sequence[int], output: IO[bytes]) -> ForkedProcess:
        with self._lock, Connection(os.dup(self._socket.fileno())) as connection:
            connection.send((target, sys.path, dict(os.environ), os.getcwd()))
            socket.send_fds(self._socket, [b"fds"], [output.fileno(), *fds])
            return ForkedProcess(connection.recv())

    def close(self) -> None:
        self._socket.close()  # at which it ends
        self._process.wait()
