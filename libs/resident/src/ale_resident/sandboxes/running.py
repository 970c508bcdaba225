"""The running sandboxes of a provider. Starting an id again returns the sandbox that runs under it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxSpec
from ale_resident.sandboxes.sandbox import ResidentSandbox

S = TypeVar("S", bound=ResidentSandbox)


class Running(dict[str, S]):
    """The running sandboxes by id."""

    def __init__(self) -> None:
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self, spec: SandboxSpec, start: Callable[[], Awaitable[S]]) -> S:
        """Start a sandbox with `start`, or return the one already running under the spec's id. Raises `ConfigError` if
        that one has another spec."""
        if spec.id is None:
            return await start()
        lock = self._starting.setdefault(spec.id, asyncio.Lock())
        async with lock:
            there = self.get(spec.id)
            if there is not None and (there.stopping is not None or there.channel.closed.is_set()):
                await there.stop()
                there = None
            if there is None:
                return await start()
            if there.spec != spec:
                raise ConfigError(
                    f"A sandbox named {spec.id!r} runs already with another spec; stop it, or use another id."
                )
            return there
