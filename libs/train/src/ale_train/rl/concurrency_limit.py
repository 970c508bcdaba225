"""How many rollouts run at once: `rollout.concurrency`, or fewer while the engine's key-value cache is short of room.

A server whose cache is full preempts requests and computes them again later. So the limit is adapted as prime-rl does
it (`orchestrator/concurrency.py`; the figures are those of `look`). Engines that report no use of a cache keep the
limit at its ceiling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from ale_train.config.rl import RLConfig
from ale_train.config.run import RunConfig
from ale_train.rl.rollout_slots import RolloutSlots
from ale_train.workbench.workbench import Workbench

log = logging.getLogger("ale.rl")
LOOK_S = 1.0
LOW, TARGET, HIGH = 0.6, 0.7, 0.8
GROWTH, AFTER_PREEMPTION, AFTER_QUEUE = 1.25, 0.8, 0.9
QUEUE_LOOKS = 6
USE, PREEMPTIONS, AT_WORK, QUEUED = "server_cache_use", "server_preemptions", "server_running", "server_waiting"


class InFlightLimit:
    """Computes the limit from what engines and rollouts report, without a clock."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = self.limit = ceiling
        self._left = 0
        """How many rollouts had left at the last change."""
        self._reading: tuple[float, ...] = ()
        """The last report; a server reports less often than `look` is called."""
        self._preemptions: float | None = None
        self._queued = 0
        """In how many reports in a row the server's queue was long."""

    def look(self, engine: Mapping[str, float], running: int, left: int) -> int:
        """Return the new limit from an engine's metrics, the rollouts that run, and how many have left so far.

        It is cut to the part that uses 0.7 of the fullest cache if that is above 0.8; to 0.8 of it after a preemption;
        to 0.9 if more than half as many requests wait as run in six reports. It grows by a quarter if the cache is used
        below 0.6 and as many rollouts as the limit have left since the last change. While more run than the limit
        allows, it waits for the effect of the last cut, and the same report cuts once.
        """
        uses = [value for name, value in engine.items() if name.rpartition("/")[2] == USE]
        if not uses:
            return self.limit
        reading = (*uses, *(engine.get(name, 0.0) for name in (PREEMPTIONS, AT_WORK, QUEUED)))
        is_new, self._reading = reading != self._reading, reading
        if is_new:
            preempted = self._note(engine)
        if running > self.limit:
            return self.limit
        if is_new and max(uses) > HIGH:
            self._change(running * TARGET / max(uses), left)
        elif is_new and preempted:
            self._change(self.limit * AFTER_PREEMPTION, left)
        elif is_new and self._queued >= QUEUE_LOOKS:
            self._change(self.limit * AFTER_QUEUE, left)
        elif max(uses) < LOW and left - self._left >= self.limit:
            self._change(self.limit * GROWTH + 1, left)
        return self.limit

    def _note(self, engine: Mapping[str, float]) -> bool:
        """Note a new report; returns whether requests were preempted since the one before."""
        long = engine.get(QUEUED, 0.0) > engine.get(AT_WORK, 0.0) / 2
        self._queued = self._queued + 1 if long else 0
        before, self._preemptions = self._preemptions, engine.get(PREEMPTIONS, 0.0)
        return before is not None and self._preemptions > before

    def _change(self, limit: float, left: int) -> None:
        self.limit = min(self.ceiling, max(1, int(limit)))
        self._left, self._queued = left, 0


def scoring_slots(run: RunConfig, config: RLConfig) -> int:
    """Return how many rewards may be computed at once. If sandboxes are limited, those that are scored must leave room
    for the rest, and for the second one that a reward may open."""
    ceiling, most = run.rollout.concurrency, getattr(run.pool, "max_sandboxes", None)
    if config.scoring_concurrency is not None or most is None:
        return config.scoring_concurrency or ceiling
    return max(1, min(ceiling, (int(most) - ceiling) // 2))


@asynccontextmanager
async def limited_slots(bench: Workbench, config: RLConfig) -> AsyncIterator[RolloutSlots]:
    """Give the rollouts of a loop their slots, whose limit follows the engine's cache."""
    rollouts, ceiling = bench.rollouts, bench.config.rollout.concurrency
    scoring = scoring_slots(bench.config, config)
    if config.scoring_concurrency is None and scoring < ceiling:
        bench.progress.note(
            f"At most {scoring} {'reward is' if scoring == 1 else 'rewards are'} computed at once, for which "
            f"pool.max_sandboxes has room beside rollout.concurrency ({ceiling}); raise it, or set "
            "rl.scoring_concurrency."
        )
    slots, limit = RolloutSlots(ceiling, scoring), InFlightLimit(ceiling)
    before = rollouts.slots, rollouts.episodes

    async def adapt() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                slots.limit = limit.look(bench.engine.metrics(), slots.running, slots.left)
            except Exception:  # a plugin's metrics must not end the run, nor this
                log.exception("the limit of running rollouts stays at %d: the engine's metrics failed", slots.limit)

    adapting = asyncio.create_task(adapt())
    rollouts.slots, rollouts.episodes = slots, replace(rollouts.episodes, scoring=slots.scoring)
    try:
        yield slots
    finally:
        rollouts.slots, rollouts.episodes = before
        adapting.cancel()
        await asyncio.wait([adapting])
