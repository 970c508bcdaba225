"""The base of the actors of engines and of rollouts: they start from a spec, send messages to the run, and close."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ale_ray.actor_calls import answered, cancel, enter_folder, take_interrupts
from ale_ray.actor_messages import ActorClosed, Outbox, send_log


class RunActor(ABC):
    """An actor of the run. A subclass hosts an engine or makes episodes."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        """What is closed in the end."""
        self._outbox = Outbox()
        self._starting: asyncio.Task[Any] | None = None

    @abstractmethod
    async def begin(self, spec: Any) -> Any:
        """Start what the actor hosts; returns what the run must know of it."""

    @answered
    async def start(self, pickled: bytes) -> Any:
        """Begin with a spec, which has the run's working folder as `folder`."""
        self._starting = asyncio.current_task()
        send_log(self._outbox)
        take_interrupts()
        spec = cloudpickle.loads(pickled)
        enter_folder(spec.folder)
        return await self.begin(spec)

    async def messages(self) -> list[Any]:
        """Wait for messages to the run, and return them."""
        return await self._outbox.take()

    @answered
    async def close(self) -> None:
        """Close what it hosts, also what has not started yet: it ends what it has started."""
        try:
            await cancel(self._starting)
            await self.end_work()
            await self._stack.aclose()
        finally:
            self._outbox.put(ActorClosed())

    async def end_work(self) -> None:  # noqa: B027
        """End what it does, before anything is closed."""
