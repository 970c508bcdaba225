"""A server's process, started through a guard that leaves nothing behind, whatever happens to its owner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ale.errors import EngineError
from ale.specs.driver import Lifecycle
from ale_engines.server import process_guard as guard

END_S = 20.0
"""Seconds that the guard may take beyond the grace time; after that it is killed, and the server dies with it."""


class ServerProcess(Lifecycle):
    """A server that lives between `start` and `close`. `log` holds what it writes; a second start appends to it."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        name: str,
        remove: Sequence[Path] = (),
        grace_s: float = 5.0,
    ) -> None:
        """`env` is the whole environment; `remove` are files and folders that vanish with the process
        (the last part of a path may be a pattern), and `grace_s` are the
        seconds between SIGTERM and SIGKILL."""
        self._argv = [*argv]
        self._env = dict(env)
        self._log = log
        self._name = name
        self._remove = [str(path) for path in remove]
        self._grace_s = grace_s
        self._guard: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[str] | None = None
        self.pid: int | None = None
        """The server's process id once it has been started."""

    @property
    def running(self) -> bool:
        """Whether the server has been started and has not ended."""
        return self._reading is not None and not self._reading.done()

    @property
    def ended(self) -> str:
        """How the server ended, such as `ended with exit status 1`; empty while it runs."""
        if self._reading is None or not self._reading.done() or self._reading.cancelled():
            return ""
        status = self._reading.result()
        if status.startswith("-"):
            return f"was ended by signal {status[1:]}"
        return f"ended with exit status {status}" if status else "was killed"

    async def start(self) -> None:
        """Start the server; it need not answer yet. Raises `EngineError` if its program cannot be started."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._guard = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", guard.__file__, str(self._grace_s), json.dumps(self._remove), "--",
                *self._argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, env=self._env,
                start_new_session=True,
            )  # fmt: skip
        assert self._guard.stdout is not None
        first = (await self._guard.stdout.readline()).decode().strip()
        if not first.startswith("pid "):
            raise EngineError(f"{self._name} cannot be started: {first.removeprefix('error ') or self.log_tail()}.")
        self.pid = int(first.split()[1])
        self._reading = asyncio.ensure_future(self._read_end(self._guard.stdout))

    async def close(self) -> None:
        """End the server and everything that it started."""
        process, self._guard = self._guard, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.shield(self._finish(process))

    async def wait_ended(self) -> None:
        """Return when the server has ended."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def log_tail(self, chars: int = 2000) -> str:
        """Return the end of what the server wrote."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - 4 * chars))
                return file.read().decode("utf-8", "replace")[-chars:].strip()
        except OSError:
            return ""

    async def _finish(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the guard's end, which is that of its output; the process that was started may end before it."""
        ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(process.wait())]
        if self._reading is not None:
            ends.append(self._reading)
        _, late = await asyncio.wait(ends, timeout=self._grace_s + END_S)
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait(ends)

    @staticmethod
    async def _read_end(stdout: asyncio.StreamReader) -> str:
        """Return the server's exit status, `-N` for signal N, or nothing if the guard was killed with it."""
        while line := await stdout.readline():
            word, _, status = line.decode().strip().partition(" ")
            if word == "ended":
                return status
        return ""
