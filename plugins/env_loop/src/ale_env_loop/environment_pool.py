"""The environments of one driver: started where none is idle, and kept for the next episode.

An environment is used by one episode at a time: many libraries keep their random numbers and caches for the whole
process, and episodes side by side in it would disturb each other.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ale.config.yaml_text import parse_yaml
from ale.errors import ConfigError
from ale_env_loop.environment import Environment, EnvironmentSettings, Step, read_step
from ale_env_loop.environment_process import EnvironmentProcess, start_process
from ale_env_loop.openenv import OpenEnvServer, open_session

MOST_IDLE = 64
"""The most processes that are kept without an episode. Beyond that, the one that was idle longest is ended."""


class ProcessEnvironment(Environment):
    """An environment in a process."""

    def __init__(self, process: EnvironmentProcess, timeout_s: float) -> None:
        self._process = process
        self._timeout_s = timeout_s

    async def reset(self, seed: int, row: Mapping[str, Any] | None) -> Step:
        self._process.forget_output()
        answer = await self._process.request("reset", self._timeout_s, seed=seed, row=row)
        return read_step(answer, f"The environment {self._process.name}")

    async def step(self, action: str) -> Step:
        answer = await self._process.request("step", self._timeout_s, action=action)
        return read_step(answer, f"The environment {self._process.name}")


class EnvironmentPool:
    """Processes and servers, between `__init__` and `close`. `start_timeout_s` is the time to import an environment or
    to find a free session of a server, `timeout_s` the time for one answer."""

    def __init__(self, start_timeout_s: float, timeout_s: float) -> None:
        self._start_timeout_s = start_timeout_s
        self._timeout_s = timeout_s
        self._idle: deque[tuple[str, EnvironmentProcess]] = deque()
        self._used: set[EnvironmentProcess] = set()
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)  # more at once only slow each other down
        self._servers: dict[str, OpenEnvServer] = {}
        self._closed = False

    @asynccontextmanager
    async def open(self, settings: EnvironmentSettings) -> AsyncIterator[Environment]:
        """Lend an environment for one episode."""
        if settings.kind.startswith("openenv") and "://" in settings.name:
            server = self._servers.setdefault(settings.env, OpenEnvServer(settings.name))
            async with open_session(server, settings, self._start_timeout_s, self._timeout_s) as session:
                yield session
            return
        async with self.lend(settings) as process:
            if settings.kind != "openenv":
                yield ProcessEnvironment(process, self._timeout_s)
                return
            server = OpenEnvServer(f"http://127.0.0.1:{process.facts['port']}", process)
            async with open_session(server, settings, self._start_timeout_s, self._timeout_s) as session:
                yield session

    @asynccontextmanager
    async def lend(self, settings: EnvironmentSettings) -> AsyncIterator[EnvironmentProcess]:
        """Lend a process in which the environment is loaded. It is kept afterwards unless it is broken."""
        process = self._take(settings.key) or await self._start(settings)
        try:
            yield process
        finally:
            self._used.discard(process)
            if process.broken or self._closed:
                await process.stop()
            else:
                self._idle.append((settings.key, process))
                if len(self._idle) > MOST_IDLE:
                    await self._idle.popleft()[1].stop()

    async def close(self) -> None:
        """End all processes. It is idempotent."""
        self._closed = True
        left = {process for _, process in self._idle} | self._used
        self._idle.clear()
        await asyncio.gather(*(process.stop() for process in left))

    def _take(self, key: str) -> EnvironmentProcess | None:
        for entry in reversed(self._idle):
            if entry[0] == key:
                self._idle.remove(entry)
                self._used.add(entry[1])
                return entry[1]
        return None

    async def _start(self, settings: EnvironmentSettings) -> EnvironmentProcess:
        async with self._starting:
            if self._closed:
                raise ConfigError(f"The environment {settings.env} was asked for after its driver was closed.")
            process = await start_process(settings.env, settings.python)
            self._used.add(process)
            try:
                process.facts = await self._load(settings, process)
            except BaseException:
                self._used.discard(process)
                await process.stop()
                raise
        return process

    async def _load(self, settings: EnvironmentSettings, process: EnvironmentProcess) -> dict[str, Any]:
        """Load the environment, or serve it; returns whether it has an expert, or its port."""
        if settings.kind != "openenv":
            facts: dict[str, Any] = await process.request(
                "load", self._start_timeout_s, kind=settings.kind, name=settings.name, settings=settings.settings
            )
            return facts
        app = read_app(Path(settings.name) / "openenv.yaml")
        port = await process.request("serve", self._start_timeout_s, folder=settings.name, app=app)
        return {"port": port}


def read_app(manifest: Path) -> str:
    """Return the app that an `openenv.yaml` names. Raises `ConfigError`."""
    try:
        data = parse_yaml(manifest.read_text(encoding="utf-8"), str(manifest))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{manifest} cannot be read: {error}.") from None
    app = data.get("app") if isinstance(data, dict) else None
    if not (isinstance(app, str) and ":" in app):
        raise ConfigError(f"{manifest} must name the app to serve, such as `app: server.app:app`; it has {app!r}.")
    return app
