"""An engine's driver in this process as a replica.

1. Each generation is a task of its own, so that a generation that `interrupt` ended is not taken for one that its
   caller cancelled.
2. A driver with a method `interrupt` ends its generations with the finish reason `abort` and what they have sampled.
   Those of another driver are cancelled, and what they have sampled is lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from ale.errors import EngineError
from ale.specs.driver import Lifecycle
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_engines.pool.continuation import NOTHING
from ale_engines.pool.replica import Interrupted, Replica


@runtime_checkable
class Interruptible(Protocol):
    """A driver that can end its generations."""

    async def interrupt(self) -> None:
        """Have each generation return what it has sampled, with the finish reason `abort`."""


@runtime_checkable
class Checkable(Protocol):
    """A driver that can say whether it serves."""

    async def check(self) -> None:
        """Raise `EngineError` if it does not."""


@runtime_checkable
class Followed(Protocol):
    """A driver that can say what it has sampled while it samples."""

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        pass


class DriverReplica(Replica):
    """An engine's driver as a replica. It owns the driver: it starts and closes it."""

    def __init__(self, driver: InferenceEngine, name: str, slots: int) -> None:
        """`slots` is how many requests the driver samples at the same time."""
        self._driver, self._name, self._slots = driver, name, slots
        self._running: set[asyncio.Task[Generation]] = set()
        self._interruptions = 0
        self._asleep = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def requests(self) -> int:
        """How many generations run, from all senders: the process that hosts the replica reports it to the pool."""
        return len(self._running)

    @property
    def transports(self) -> tuple[str, ...]:  # type: ignore[override]  # the driver's may change when it starts
        """The driver's transports."""
        return self._driver.transports

    @property
    def max_context(self) -> int:
        return self._driver.max_context

    @property
    def version(self) -> int:
        return self._driver.version

    @property
    def frees_memory(self) -> bool:
        """A driver without a `sleep` of its own frees nothing."""
        return type(self._driver).sleep is not InferenceEngine.sleep

    async def start(self) -> None:
        """Start the driver."""
        if isinstance(self._driver, Lifecycle):
            await self._driver.start()

    async def close(self) -> None:
        """Close the driver."""
        if isinstance(self._driver, Lifecycle):
            await self._driver.close()

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        await self._driver.load_model(folder, tokenizer)
        self._asleep = False

    async def load_weights(self, policy: PolicyVersion) -> None:
        await self._driver.load_weights(policy)

    async def generate(self, request: GenerateRequest) -> Generation:
        """While it sleeps, another replica shall serve the request."""
        if self._asleep:
            raise Interrupted(f"{self.name} is asleep.", NOTHING)
        task = asyncio.get_running_loop().create_task(self._begin(request, self._interruptions))
        self._running.add(task)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # the caller has gone; asyncio would report it as never retrieved
            raise
        finally:
            self._running.discard(task)
        if task.cancelled():
            raise Interrupted(f"{self.name} was interrupted.", NOTHING)
        generation = task.result()
        if generation.finish_reason == "abort":
            raise Interrupted(f"{self.name} was interrupted.", replace(generation, finish_reason="length"))
        return generation

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        return self._driver.sampled_so_far(request, after) if isinstance(self._driver, Followed) else NOTHING

    async def _begin(self, request: GenerateRequest, interruptions: int) -> Generation:
        if interruptions != self._interruptions:
            raise Interrupted(f"{self.name} was interrupted before it began.", NOTHING)
        return await self._driver.generate(request)

    async def interrupt(self) -> None:
        """It returns when all have ended."""
        self._interruptions += 1
        before = set(self._running)
        if isinstance(self._driver, Interruptible):
            await self._driver.interrupt()
        else:
            for task in before:
                task.cancel()
        if before:
            await asyncio.wait(before)

    async def check(self) -> None:
        """A driver without a method `check` is taken to serve."""
        if isinstance(self._driver, Checkable):
            await self._driver.check()

    async def restart(self) -> None:
        """Raise `EngineError`: only who started this process can do it."""
        raise EngineError(f"{self.name} cannot be started again by itself: the process in which it runs must be.")

    async def pause(self) -> None:
        await self._driver.pause()

    async def resume(self) -> None:
        await self._driver.resume()

    async def sleep(self) -> None:
        """What still runs is interrupted."""
        self._asleep = True
        await self.interrupt()
        await self._driver.sleep()

    async def wake(self) -> None:
        await self._driver.wake()
        self._asleep = False

    def metrics(self) -> dict[str, float]:
        return self._driver.metrics()
