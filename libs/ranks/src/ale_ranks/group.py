"""The owner's side: `Ranks` starts the processes, calls a method on all of them, and ends them.

1. Ranks compute together, so one that fails can leave the others waiting for it. If all fail in the same call, the
   first one's error is raised and the ranks go on. If only some fail or one dies, all are ended and every later call
   raises `TrainerError`: what the others hold is half of a state.
2. Their standard output and error go to a file without a name, of which an error shows the end.
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
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import IO, Any

import cloudpickle  # type: ignore[import-untyped]

from ale.errors import AleError, TrainerError
from ale_ranks.launcher import launch
from ale_ranks.plan import COLLECTIVE_TIMEOUT, RankPlan

OTHERS_S = 5.0
"""How long the others may take to answer after one rank has failed."""
READING = ("load", "restore")
READING_S = 120.0
"""The same in these calls, in which each rank reads files: all find the same fault, but on a slow disk not at once."""
END_S = 10.0
SHOWN_CHARACTERS = 2000


class Ranks:
    """Processes that each hold an object made by `target(world, *args)`; `target` is `module:Class`.

    `threads` are the CPU threads of each; `backend` is torch's name of what connects them (gloo, nccl). Calls come one
    at a time, from any thread; `kill` may come beside one.
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
        from torch._C._distributed_c10d import TCPStore  # here, so that importing this package takes no second

        self._failure: str | None = None
        self._ending = False
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            port = listening.getsockname()[1]
            self._store = TCPStore(
                "127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=COLLECTIVE_TIMEOUT,
                master_listen_fd=listening.detach(), use_libuv=False,
            )  # fmt: skip
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
            self._send(pickle.dumps(RankPlan(sys.path, target, size, port, threads, backend)))
            self.call("__init__", *args)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method on all ranks and return their answers, by rank.

        Raises what all of them raise, and `TrainerError` if only some fail or one has ended.
        """
        if self._failure is not None:
            raise TrainerError(self._failure)
        self._send(cloudpickle.dumps((method, args)))
        answers = self._collect(READING_S if method in READING else OTHERS_S)
        ended = {rank: value for rank, (what, value) in answers.items() if what == "ended"}
        errors = {rank: value for rank, (what, value) in answers.items() if what == "error"}
        if not ended and not errors:
            return [answers[rank][1] for rank in range(len(self._connections))]
        first = min(ended or errors)  # the others' errors are that it has ended
        cause: BaseException = (ended or errors)[first]
        if len(errors) == len(self._connections):
            raise cause
        self._failure = self._failure or (
            f"Rank {first} of {len(self._connections)} failed in '{method}', and not all did, so all were ended: "
            f"{cause if isinstance(cause, AleError) else f'{type(cause).__name__}: {cause}'}{self._last_output()}"
        )
        self._end()
        raise TrainerError(self._failure) from cause

    def kill(self) -> None:
        """End all ranks by force, whatever they do. A call that another thread waits in then raises `TrainerError`."""
        self._failure = self._failure or "The ranks were ended by force."
        if not self._ending:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End all ranks."""
        self._failure = self._failure or "The ranks were closed."
        self._end()

    def _send(self, request: bytes) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):  # that rank has ended, which `_receive` reports
                connection.send_bytes(request)

    def _collect(self, others_s: float) -> dict[int, tuple[str, Any]]:
        """Wait for the answers: for all of them, or for `others_s` more once one has failed, `OTHERS_S` if it ended."""
        answers: dict[int, tuple[str, Any]] = {}
        waiting = dict(enumerate(self._connections))
        until: float | None = None
        while waiting:
            ready = wait(list(waiting.values()), None if until is None else max(0.0, until - time.monotonic()))
            if not ready:
                break
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                what, value = _receive(waiting.pop(rank))
                answers[rank] = (what, value)
                if what != "value":
                    limit = time.monotonic() + (others_s if what == "error" else OTHERS_S)
                    until = limit if until is None else min(until, limit)
        return answers

    def _last_output(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        text = os.pread(self._output.fileno(), SHOWN_CHARACTERS, max(0, size - SHOWN_CHARACTERS))
        shown = text.decode(errors="replace").strip()
        return f"\nThe last output of the ranks:\n{shown}" if shown else ""

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


def _receive(connection: Connection) -> tuple[str, Any]:
    """Return a rank's answer; where none will come, an error."""
    try:
        answer: tuple[str, Any] = pickle.loads(connection.recv_bytes())
        return answer
    except (EOFError, OSError):
        return "ended", TrainerError("its process has ended.")
