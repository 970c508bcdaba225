"""Ranks that are processes of this machine: `Ranks` starts them, calls a method on all of them, and ends them.

Their standard output and error go to an unnamed file; an error shows the end of it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from ale.errors import TrainerError
from ale_torch.ranks.group import RankGroup
from ale_torch.ranks.launcher import launch
from ale_torch.ranks.rank import Answer, open_store
from ale_torch.ranks.world import LOOPBACK, RankPlan

END_S = 10.0
SHOWN_CHARACTERS = 2000


class Ranks(RankGroup):
    """Processes that each hold an object made by `target(world, *args)`; `target` is `module:Class`.

    `threads` are the CPU threads of each; `backend` is torch's name of what connects them (gloo, nccl).
    """

    def __init__(
        self,
        target: str,
        size: int,
        args: tuple[Any, ...] = (),
        *,
        threads: int,
        backend: str,
        launched: Callable[[Ranks], None] | None = None,
    ) -> None:
        """Start them. Raises what the constructor of the object raises.

        `launched` is called before the objects are made, so that another thread can `kill` what does not get ready."""
        super().__init__(size)
        self._ending = False
        self._store, port = open_store(LOOPBACK)
        pairs = [socket.socketpair() for _ in range(size)]
        fds = [theirs.fileno() for _, theirs in pairs]
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `_end`
        self._process = launch(target, fds, self._output)
        for _, theirs in pairs:
            theirs.close()
        self._connections = [Connection(ours.detach()) for ours, _ in pairs]
        if launched is not None:
            launched(self)
        try:
            self._send(
                pickle.dumps(
                    RankPlan(path=sys.path, target=target, size=size, port=port, threads=threads, backend=backend)
                )
            )
            self.call("__init__", *args)
        except BaseException:
            self.close()
            raise

    def _send(self, request: bytes) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):  # that rank has ended, which `_receive` reports
                connection.send_bytes(request)

    def _wait(self, ranks: Collection[int], timeout_s: float | None) -> dict[int, Answer]:
        ready = wait([self._connections[rank] for rank in ranks], timeout_s)
        return {rank: _receive(self._connections[rank]) for rank in ranks if self._connections[rank] in ready}

    def _last_output(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), SHOWN_CHARACTERS, max(0, size - SHOWN_CHARACTERS))
        shown = text.decode(errors="replace").strip()
        return f"\nThe last output of the ranks:\n{shown}" if shown else ""

    def _kill(self) -> None:
        if not self._ending:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> None:
        self._ending = True  # from here on its id may become another process's
        for connection in self._connections:
            connection.close()  # at which its rank ends
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()


class OneRank:
    """A world of one, in this process: the same calls of an object that is already there."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method and return its answer."""
        return [getattr(self.target, method)(*args)]

    def kill(self) -> None:
        """Do nothing: what this process computes can only be waited for."""

    def close(self) -> None:
        """Close the object."""
        self.target.close()


def _receive(connection: Connection) -> Answer:
    """Return a rank's answer; where none will come, an error."""
    try:
        answer: Answer = pickle.loads(connection.recv_bytes())
        return answer
    except (EOFError, OSError):
        return "ended", TrainerError("its process has ended.")
