"""A process with one environment, in the Python that has its libraries, and requests to it.

1. The process runs `worker/` on a socket of its own. It leads a process group, which is killed as a whole.
2. A request has an id and a time limit. After a late answer, a cancelled request or a death the process is `broken`: it
   is killed and never asked again, so no later episode can read an answer that was meant for an earlier one.
3. If this process dies, also by `kill -9`, the socket closes, and the environment's process ends itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ale.errors import ConfigError, SandboxError, TaskError
from ale_env_loop.environment import IllegalAction

LONGEST_LINE = 1 << 26
"""The most bytes of one answer."""
GRACE_S = 2.0
"""Seconds that an idle process gets to close its environment."""
LAST_WORDS = 500
WORKER = Path(__file__).parent / "worker" / "__init__.py"
START = (
    "import importlib.util as u, sys\n"
    "spec = u.spec_from_file_location('ale_env_worker', sys.argv[1], submodule_search_locations=[sys.argv[2]])\n"
    "module = u.module_from_spec(spec)\n"
    "sys.modules[spec.name] = module\n"
    "spec.loader.exec_module(module)\n"
    "module.main(int(sys.argv[3]))\n"
)
"""It imports `worker/` by its path alone: nothing else of this package, or of its venv, can be seen from there."""


class EnvironmentProcess:
    """A process that was started; `start_process` makes one."""

    def __init__(self, name: str, child: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.name = name
        self.pid = child.pid
        self.broken = False
        self.facts: dict[str, Any] = {}
        """What it answered when its environment was loaded."""
        self._child = child
        self._output = output
        self._requests = 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._stopping: asyncio.Future[None] | None = None

    async def connect(self, connection: socket.socket) -> None:
        """Use this end of the socket."""
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=LONGEST_LINE)

    async def request(self, operation: str, timeout_s: float, **data: Any) -> Any:
        """Ask for an operation and return its result. Raises `IllegalAction`, `ConfigError` (the environment cannot be
        imported), `TaskError` (it raised an exception) or `SandboxError` (it is gone, or late)."""
        self._requests += 1
        number, done = self._requests, False
        try:
            answer = await self._exchange({"id": number, "op": operation, **data}, timeout_s)
            done = answer["id"] == number
        finally:
            self.broken = self.broken or not done
        if not done:
            raise SandboxError(f"The environment {self.name} answered another request than the last.")
        if "error" not in answer:
            return answer["result"]
        text = answer["error"]["text"]
        if answer["error"]["kind"] == "illegal":
            raise IllegalAction(text)
        if answer["error"]["kind"] == "load":
            raise ConfigError(f"The environment {self.name} cannot be loaded: {text}.")
        self.broken = True  # who knows what an exception has left in it
        raise TaskError(f"The environment {self.name} failed in '{operation}': {text}.")

    async def _exchange(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._reader is not None
        assert self._writer is not None
        try:
            self._writer.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
                line = await self._reader.readuntil(b"\n")
        except TimeoutError:
            raise SandboxError(
                f"The environment {self.name} did not answer '{request['op']}' within {timeout_s:g} s; its process is "
                "ended, and a late answer is read by nobody."
            ) from None
        except asyncio.LimitOverrunError:
            raise TaskError(
                f"The environment {self.name} answered '{request['op']}' with more than {LONGEST_LINE >> 20} MiB."
            ) from None
        except (asyncio.IncompleteReadError, OSError):
            raise SandboxError(
                f"The process of the environment {self.name} ended during '{request['op']}'{self._last_words()}."
            ) from None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def forget_output(self) -> None:
        """Drop what it printed so far."""
        os.ftruncate(self._output.fileno(), 0)
        os.lseek(self._output.fileno(), 0, os.SEEK_SET)  # the process writes at this same offset

    def _last_words(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        last = os.pread(self._output.fileno(), LAST_WORDS, max(0, size - LAST_WORDS)).decode("utf-8", "replace").strip()
        return f"; the last that it printed is {last.splitlines()[-1]!r}" if last else ""

    async def stop(self) -> None:
        """End the process and its group; an idle one closes its environment first. It is idempotent, and is carried
        out whole also if the caller is cancelled."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        try:
            if not self.broken and self._reader is not None:
                self._child.terminate()
                with suppress(TimeoutError, OSError):
                    async with asyncio.timeout(GRACE_S):
                        await self._reader.read()  # until it ends: whoever waits for a process frees its id
        finally:
            self.broken = True
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            await asyncio.to_thread(self._child.wait)
            self._output.close()
            if self._writer is not None:
                self._writer.close()
                with suppress(OSError):
                    await self._writer.wait_closed()


async def start_process(name: str, python: str | None) -> EnvironmentProcess:
    """Start a process in which nothing is loaded yet. Raises `ConfigError` if there is no such Python."""
    starting = asyncio.ensure_future(_start(name, python or sys.executable))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(Exception):
            await (await starting).stop()
        raise


async def _start(name: str, python: str) -> EnvironmentProcess:
    ours, theirs = socket.socketpair()
    output = tempfile.TemporaryFile(prefix="ale-environment-")  # noqa: SIM115  # closed when the process is stopped
    arguments = [str(WORKER), str(WORKER.parent), str(theirs.fileno())]
    try:
        child = await asyncio.to_thread(
            subprocess.Popen,
            [python, "-u", "-c", START, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        output.close()
        raise ConfigError(f"The Python {python} of the environment {name} cannot be started: {error}.") from None
    finally:
        theirs.close()
    process = EnvironmentProcess(name, child, output)
    await process.connect(ours)
    return process
