"""The sandboxes of a provider that run now. Starting an id again gives the sandbox that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxSpec
from ale_resident.sandbox import ResidentSandbox

S = TypeVar("S", bound=ResidentSandbox)


class Running(dict[str, S]):
    """Sandboxes by id."""

    def __init__(self) -> None:
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self, spec: SandboxSpec, start: Callable[[], Awaitable[S]]) -> S:
        """What `start` gives, or what runs under the spec's id already. Raises `ConfigError` where that is another spec's."""
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
                    f"A sandbox named {spec.id!r} runs already, from another spec; stop it, or use another id."
                )
            return there
