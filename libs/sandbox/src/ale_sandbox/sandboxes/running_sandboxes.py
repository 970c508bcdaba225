"""The running sandboxes of a provider. Starting a spec whose id is in use returns the sandbox that has it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from ale.errors import ConfigError
from ale.specs.sandbox import SandboxSpec
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

S = TypeVar("S", bound=ResidentSandbox)

log = logging.getLogger("ale.sandbox")


class RunningSandboxes(dict[str, S]):
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
            existing = self.get(spec.id)
            if existing is not None and (existing.stopping is not None or existing.channel.closed.is_set()):
                await existing.stop()
                existing = None
            if existing is None:
                return await start()
            if existing.spec != spec:
                raise ConfigError(
                    f"A sandbox named {spec.id!r} runs already with another spec; stop it, or use another id."
                )
            return existing

    async def stop_all(self) -> None:
        """Stop every sandbox. What one could not remove is warned of; the next start of a provider removes it."""
        boxes = list(self.values())
        for box, problem in zip(
            boxes, await asyncio.gather(*(box.stop() for box in boxes), return_exceptions=True), strict=True
        ):
            if problem is not None:
                log.warning("the sandbox %s was not removed: %s", box.id, problem)
