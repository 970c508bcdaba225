"""Runs many episodes at once.

`Rollouts.run` makes episodes until each request has a trajectory that can be trusted; all calls together keep at most
`concurrency` of them running. A rejected one is stored with its reason and made again, from the same start, with the
current policy, up to `max_resamples` times; a request that is rejected every time yields nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace

from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.filters import OVERLONG, Filter, Rejection
from ale.specs.algorithm import RolloutRequest
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory

RESEED = 7_919
"""It is added to a request's seed for each new try, so that the try is a new sample."""


@dataclass
class RejectionCounts:
    """How many rollouts of a step were rejected, why, and how many requests were given up."""

    finished: int = 0
    resampled: int = 0
    unfilled: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def metrics(self) -> dict[str, float]:
        """Return `rejected` and `rejected/<reason>`: shares of all finished rollouts. `resampled`: the number of
        rollouts made again after a rejection. `unfilled`: the number of requests of which every try was rejected."""
        n = max(1, self.finished)
        shares = {f"rejected/{reason.replace(' ', '_')}": count / n for reason, count in sorted(self.rejected.items())}
        return {
            "rejected": self.rejected.total() / n,
            "resampled": float(self.resampled),
            "unfilled": float(self.unfilled),
        } | shares


@dataclass
class Rollouts:
    """It runs requests, stores every trajectory, and returns the good ones in the order of the requests."""

    episodes: Episodes
    store: RunStore
    advance: Callable[[], None] = lambda: None  # for each rollout that can be trusted
    judge: Callable[[Trajectory], Rejection | None] | None = None
    """It returns why a rollout cannot be trusted, or None; the default is the run's `Filter`."""
    given_up: dict[str, Counter[str]] = field(default_factory=dict)
    """By group, the requests of which every try was rejected, by the last reason. The reader clears it."""
    running: dict[asyncio.Task[object], RolloutRequest] = field(default_factory=dict)
    """What runs; what began first is first."""
    slots: AbstractAsyncContextManager[object] = None  # type: ignore[assignment]  # set when made
    """Each rollout holds a slot while it runs; by default there are `concurrency` of them."""
    _counts: dict[str, RejectionCounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = self.slots or asyncio.Semaphore(self.episodes.config.concurrency)
        if self.judge is None:
            declared = (option.driver.deterministic_tools for option in self.episodes.scaffold.options)
            tools = frozenset[str]().union(*declared)
            self.judge = Filter(self.episodes.config, self.episodes.hooks, tools).rejection

    def metrics(self, stage: str) -> dict[str, float]:
        """Return what was rejected in a stage since the last call for it (`RejectionCounts.metrics`)."""
        return self._counts.pop(stage, RejectionCounts()).metrics()

    async def run(self, requests: Sequence[RolloutRequest], stage: StageInfo) -> list[Trajectory]:
        """Run all requests."""
        self.episodes.expect(requests, stage)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._until_good(request, stage)) for request in requests]
        except ExceptionGroup as several:
            # One mistake in the configuration fails every worker in the same way; the user needs its sentence alone.
            raise several.exceptions[0] from several
        return [trajectory for task in tasks if (trajectory := task.result()) is not None]

    async def _until_good(self, request: RolloutRequest, stage: StageInfo) -> Trajectory | None:
        asked_at, task = time.monotonic(), asyncio.current_task()
        assert self.judge is not None, "set when made"
        assert task is not None, "`run` makes one"
        tries = self.episodes.config.max_resamples + 1
        if self.store.resumed:
            seeds = [request.seed + attempt * RESEED for attempt in range(tries)]
            place = stage.name, stage.step, request.group, request.task.id
            if (made := self.store.find_rollout(*place, seeds)) is not None:
                return made
        given_up = ""
        for attempt in range(tries):
            async with self.slots, AsyncExitStack() as stack:
                self.running[task] = request
                stack.callback(self.running.pop, task)
                tried = replace(request, seed=request.seed + attempt * RESEED)
                queued = time.monotonic() - asked_at
                trajectory = await self.episodes.run(tried, stage)
                trajectory = replace(trajectory, timings=(("queue", round(queued, 6)), *trajectory.timings))
                asked_at = time.monotonic()
                rejection = self.judge(trajectory)
                counts = self._counts.setdefault(stage.name, RejectionCounts())
                counts.finished += 1
                counts.resampled += attempt > 0
                if rejection is not None:
                    counts.rejected[rejection.kind] += 1
                    given_up = rejection.kind
                    trajectory = replace(trajectory, rejected=rejection.reason, rejected_because=rejection.detail)
                await self.store.save_trajectory(trajectory)
                self.episodes.hooks.call("ale_trajectory_finished", trajectory=trajectory)
                if rejection is None:
                    self.advance()
                    return trajectory
                if rejection.final:
                    return None
                if rejection.kind == OVERLONG:
                    break
        self._counts.setdefault(stage.name, RejectionCounts()).unfilled += 1
        self.given_up.setdefault(request.group, Counter())[given_up] += 1
        return None
