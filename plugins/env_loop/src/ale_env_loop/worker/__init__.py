"""The program in an environment's process. It needs only the standard library of Python 3.10, so any venv can run it.

1. Requests are JSON lines on one socket, and each gets one JSON line with the same `id`: `{"id", "result"}`, or
   `{"id", "error": {"kind", "text"}}`. The environment runs in the main thread, which some libraries need.
2. What the environment prints goes to standard error; it cannot disturb the socket.
3. A thread reads the socket. Where it ends, because the owner closed it or was killed, the thread ends this process and
   all of its process group, also while the environment is busy. On SIGTERM the environment is closed first.

Operations: `load` imports the environment, `reset` and `step` play it, `demonstrate` plays one whole episode as its
expert, `serve` turns this process into an OpenEnv server.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from .adapters import Adapter, IllegalAction, find_adapter
from .demonstration import play_expert
from .server import serve_openenv

LOAD_ERROR, EPISODE_ERROR, ILLEGAL_ACTION = "load", "episode", "illegal"


class Worker:
    """One environment and the requests to it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._adapter: Adapter | None = None
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def run(self) -> None:
        """Answer requests until the owner is gone."""
        threading.Thread(target=self._read, daemon=True).start()
        try:
            while True:
                request = self._requests.get()
                self.reply(request, self._answer(request))
        finally:
            if self._adapter is not None:
                self._adapter.close()

    def reply(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        """Send one answer. An owner that is gone ends this process, in the reading thread."""
        line = json.dumps({"id": request["id"], **answer}) + "\n"
        try:
            self._connection.sendall(line.encode())
        except OSError:
            threading.Event().wait()

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    self._requests.put(json.loads(line))
        finally:
            os.killpg(0, signal.SIGKILL)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        loading = request["op"] in ("load", "serve")
        try:
            return {"result": self._carry_out(request)}
        except IllegalAction as refusal:
            return {"error": {"kind": ILLEGAL_ACTION, "text": str(refusal)}}
        except _Terminated:
            raise
        except BaseException as error:  # no Ctrl-C comes here: this process has a group of its own
            return {"error": {"kind": LOAD_ERROR if loading else EPISODE_ERROR, "text": describe(error)}}

    def _carry_out(self, request: dict[str, Any]) -> Any:
        operation = request["op"]
        if operation == "load":
            self._adapter = find_adapter(request["kind"], request["name"], request["settings"])
            return {"expert": self._adapter.has_expert}
        if operation == "serve":
            return serve_openenv(request["folder"], request["app"], lambda port: self.reply(request, {"result": port}))
        assert self._adapter is not None, "the owner loads the environment first"
        if operation == "reset":
            return self._adapter.reset(request["seed"], request["row"])
        if operation == "step":
            return self._adapter.step(request["action"])
        if operation == "demonstrate":
            return play_expert(self._adapter, request)
        raise ValueError(f"there is no operation {operation!r}")


class _Terminated(SystemExit):
    """The owner ends this process."""


def _end(number: int, frame: object) -> None:
    raise _Terminated


def describe(error: BaseException) -> str:
    """Return an exception as a sentence, with the place outside this program where it was raised."""
    here = os.path.dirname(os.path.abspath(__file__))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(here)]
    own = [frame for frame in frames if not frame.filename.startswith("<")]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def main(descriptor: int) -> None:
    """Run the worker on the socket with this file descriptor."""
    os.set_inheritable(descriptor, False)  # what the environment starts must not hold it open
    sys.argv = ["environment"]
    signal.signal(signal.SIGTERM, _end)
    Worker(socket.socket(fileno=descriptor)).run()
