"""Shares the trainer's devices while a loop runs: the trainer has them alone, or in turns with engines
(`rl.multiplex`).

`DedicatedDevices` are always the trainer's. `SharedDevices` change sides:

1. All engines sample at first. While the trainer waits for its batch, the policy (`multiplexing.py`) decides when to
   take its devices back: what these engines sample goes on at the others, and their memory is freed.
2. After an update the policy decides whether to lend the devices again: the trainer then sleeps, and the engines load
   the newest weights. If all engines lie there, nothing else samples, so they are lent after every update, and for an
   evaluation that still runs.
3. A trainer that gives memory back while it sleeps wakes by itself when it is called, so it must have its devices alone
   then. A checkpoint that is due after a step is therefore written before the devices are lent.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

from ale.errors import AleError, ConfigError
from ale.specs.engine import InferenceEngine
from ale_train.rl.checks import LendsDevices
from ale_train.rl.multiplexing import Multiplexing

LOOK_S = 0.1
"""Seconds between two looks at a batch or an evaluation that is waited for."""
WEIGHT = 0.5
"""The weight of the newest switch in the estimate of how long a switch takes."""
T = TypeVar("T")


@runtime_checkable
class Elastic(Protocol):
    """Engines of which some can sleep while the others go on, as a pool of `ale-engines` can."""

    def replica_statuses(self) -> Sequence[Any]:
        """Return the engines, each with `name`, `slots` and `state` (`failed`: it is given up)."""
        ...

    async def shrink(self, names: Sequence[str]) -> None:
        """Take engines out of service and free their memory; what they sample goes on elsewhere, or waits."""
        ...

    async def expand(self, names: Sequence[str]) -> None:
        """Have engines serve again, with the current weights."""
        ...


def require_elastic(engine: InferenceEngine, count: int) -> Elastic:
    """Return the engine, of which `count` parts can sleep. Raises `ConfigError` if it has fewer parts, or if their
    sleep frees nothing."""
    parts = len(engine.replica_statuses()) if isinstance(engine, Elastic) else 0
    if not isinstance(engine, Elastic) or parts < count:
        raise ConfigError(
            f"rl.multiplex is {count}, but of engines that can sleep while others sample the run has "
            f"{parts or 'none'}: take a cluster with as many (cluster.engine.replicas), or an engine with replicas, or "
            "leave rl.multiplex out."
        )
    if isinstance(engine, LendsDevices) and (objection := engine.objection_to_lending(count)):
        raise ConfigError(objection)
    return engine


class TrainerDevices(ABC):
    """The devices that the trainer computes on, as the loop uses them."""

    @abstractmethod
    async def wait_for(self, batch: Awaitable[T]) -> T:
        """Wait for a batch of rollouts; the trainer has its devices when this returns."""

    @abstractmethod
    async def wait_for_evaluation(self, evaluation: asyncio.Future[None]) -> None:
        """Wait until an evaluation has ended, during a step; the trainer has its devices when this returns."""

    @abstractmethod
    async def finish_update(self, *, sampling_follows: bool, save_follows: bool) -> None:
        """Decide after an update who has the devices next. `sampling_follows`: another batch or evaluation is sampled;
        `save_follows`: a checkpoint comes before that."""

    @abstractmethod
    async def lend_if_due(self) -> None:
        """Lend the devices to engines if that was decided and has not begun."""

    @abstractmethod
    def lent_to_evaluation(self, *, samples: bool) -> AbstractAsyncContextManager[None]:
        """Lend the devices to the evaluation after the last step, if it `samples`; after it the trainer has them."""

    @abstractmethod
    def held(self, limit_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Keep the devices for the trainer inside the block, if it needs them to itself. With a limit it may not get
        them: engines that cannot fall asleep are no reason to lose what is to be saved."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return the metrics of a step."""

    @abstractmethod
    async def close(self) -> None:
        """End what was begun; engines and trainer stay as they are."""


class DedicatedDevices(TrainerDevices):
    """Devices that no engine uses: the trainer always has them."""

    async def wait_for(self, batch: Awaitable[T]) -> T:
        return await batch

    async def wait_for_evaluation(self, evaluation: asyncio.Future[None]) -> None:
        await asyncio.wait([evaluation])

    async def finish_update(self, *, sampling_follows: bool, save_follows: bool) -> None:
        """It has nothing to decide."""

    async def lend_if_due(self) -> None:
        """It never lends them."""

    @asynccontextmanager
    async def lent_to_evaluation(self, *, samples: bool) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def held(self, limit_s: float | None = None) -> AsyncIterator[None]:
        yield

    def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """It has begun nothing."""


class SharedDevices(TrainerDevices):
    """Devices on which `count` engines sample while the trainer waits."""

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        count: int,
        batch_size: int,
        ready: Callable[[], int],
        at_engines: Callable[[], int],
        sleep: Callable[[], Awaitable[bool]],
        enter: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        """`ready` returns the number of groups that are finished, `at_engines` that of requests at the engines, and
        `sleep` is the trainer's. `enter` gets the trainer's state when it changes here, and `note` a sentence for
        people. Raises `ConfigError` as `require_elastic` does."""
        self._engine = require_elastic(engine, count)
        statuses = self._engine.replica_statuses()
        rest = statuses[: len(statuses) - count]
        self._names = {status.name for status in statuses[len(rest) :]}
        self._policy = Multiplexing(batch_size, count / len(statuses)) if rest else None
        self._rest = len(rest) / len(statuses)
        self._ready, self._at_engines, self._sleep = ready, at_engines, sleep
        self._enter, self._note = enter, note
        self._lent = True
        """Whether the devices are the engines', or will be once `_expanding` has ended."""
        self._slept: bool | None = None
        """Whether the trainer gave memory back when it last slept; None before the first time."""
        self._due = False
        """Whether the devices will be lent, which has been decided and has not begun."""
        self._expanding: asyncio.Task[None] | None = None
        self.waited_s = 0.0
        """How long the trainer waited for its last batch, without the switch after that."""
        self._switch_s = 0.0
        self._switched_s = 0.0

    async def wait_for(self, batch: Awaitable[T]) -> T:
        began, ready = time.monotonic(), self._ready()
        coming = asyncio.ensure_future(batch)
        back: asyncio.Task[None] | None = None
        try:
            while not coming.done():
                await asyncio.wait([coming], timeout=LOOK_S)
                if self._expanding is not None and self._expanding.done():
                    self._expanding.result()  # raises its error now: without these engines no batch may ever be there
                if back is not None and back.done():
                    back.result()  # raises its error now, and not when the batch is there
                elif back is None and self._lent and self._may_shrink(began, ready):
                    back = asyncio.create_task(self._take_back())
                if not self._lent and not self._find_rest():  # the others were given up: nothing would sample
                    back = None
                    self.lend()
            self.waited_s = time.monotonic() - began
            if self._lent:
                self._enter("switch")
                await (back or self._take_back())
            return await coming
        finally:
            await _end(coming, back)

    async def wait_for_evaluation(self, evaluation: asyncio.Future[None]) -> None:
        while not evaluation.done():
            await self.serve_evaluation()  # the engines that sample may be given up meanwhile
            await asyncio.wait([evaluation], timeout=LOOK_S)
        await self.take_back_to_wake()

    async def finish_update(self, *, sampling_follows: bool, save_follows: bool) -> None:
        if sampling_follows:
            self.decide()
        if not (save_follows and self._slept):  # it would have to wake up to save
            await self.lend_if_due()

    @asynccontextmanager
    async def lent_to_evaluation(self, *, samples: bool) -> AsyncIterator[None]:
        if samples:
            await self.serve_all()
        yield
        await self.take_back_to_wake()

    @asynccontextmanager
    async def held(self, limit_s: float | None = None) -> AsyncIterator[None]:
        taken = False
        try:
            async with asyncio.timeout(limit_s):
                taken = await self.take_back_to_wake()
        except (AleError, TimeoutError):
            if limit_s is None:
                raise
            self._note("The engines on the trainer's devices did not fall asleep.")
        yield
        if taken:
            self.lend()

    async def take_back_to_wake(self) -> bool:
        """Take the devices back if the trainer, which will be called next, gives memory back while it sleeps; return
        whether they were taken back."""
        if self._slept is None:
            self._slept = await self._sleep()
        if not (self._lent and self._slept):
            return False
        self._enter("switch")
        await self._take_back()
        return True

    def lend(self) -> None:
        """Have the trainer sleep and the engines serve."""
        self._lent = True
        self._expanding = asyncio.create_task(self._wake())

    def _may_shrink(self, began: float, ready: int) -> bool:
        """Ask the policy, with the speed at which groups have finished since the trainer began to wait."""
        rest = self._find_rest()
        if self._policy is None or not rest or (self._expanding is not None and not self._expanding.done()):
            return False
        speed = max(0, self._ready() - ready) / max(1e-9, time.monotonic() - began)
        soon = int(speed * self._rest * self._switch_s)
        return self._policy.shrink(self._ready(), soon, self._at_engines(), sum(status.slots for status in rest))

    def _find_lent(self) -> list[str]:
        """Return the names of the engines on the trainer's devices; some may have left (`ale cluster scale`)."""
        return [status.name for status in self._engine.replica_statuses() if status.name in self._names]

    def _find_rest(self) -> list[Any]:
        """Return the engines that sample also while the trainer trains; some may be given up, and new ones there."""
        return [
            status
            for status in self._engine.replica_statuses()
            if status.name not in self._names and status.state != "failed"
        ]

    async def _take_back(self) -> None:
        expanding, self._expanding = self._expanding, None
        if expanding is not None:
            await expanding
        began = time.monotonic()
        await self._engine.shrink(self._find_lent())
        self._lent = False
        self._note_switch(time.monotonic() - began)

    def decide(self) -> None:
        """Decide after an update whether to lend the devices again: if that is worth it, or if nothing else samples."""
        if self._policy is None or not self._find_rest():
            self._due = True
        else:
            self._due = self._policy.expand(self._ready(), self.waited_s, 2 * self._switch_s)

    async def lend_if_due(self) -> None:
        """If nothing else samples, engines serve when this returns."""
        due, self._due = self._due, False
        if not due:
            return
        self._enter("switch")
        if self._policy is not None and self._find_rest():
            self.lend()
        else:
            await self.serve_all()

    async def serve_evaluation(self) -> None:
        """Have engines serve if no other engine does: otherwise the evaluation that the trainer waits for never
        ends."""
        if not self._find_rest():
            await self.serve_all()

    async def serve_all(self) -> None:
        """Have all engines serve."""
        if not self._lent:
            self.lend()
        if self._expanding is not None:
            await self._expanding

    async def close(self) -> None:
        await _end(self._expanding)

    async def _wake(self) -> None:
        began = time.monotonic()
        self._slept = await self._sleep()
        await self._engine.expand(self._find_lent())
        self._note_switch(time.monotonic() - began)

    def _note_switch(self, seconds: float) -> None:
        self._switch_s += (WEIGHT if self._switch_s else 1.0) * (seconds - self._switch_s)
        self._switched_s += seconds

    def metrics(self) -> dict[str, float]:
        """Return the seconds of switches since the last call (`switch_s`), and whether the devices are lent now or soon
        (`lent`)."""
        switched_s, self._switched_s = self._switched_s, 0.0
        return {"switch_s": switched_s, "lent": float(self._lent or self._due)}


async def _end(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel what has not ended, and wait for its end; errors are left to the task that waited for it."""
    own = [task for task in tasks if task is not None]
    for task in own:
        task.cancel()
    await asyncio.gather(*own, return_exceptions=True)
