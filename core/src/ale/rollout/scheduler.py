"""Many episodes at once.

`Rollouts.run` keeps `concurrency` episodes going until each request has a trajectory that can be trusted. A rejected
one is stored with its reason and made anew at once, from the same start, with the current policy, up to
`max_resamples` times; a request that is rejected every time yields nothing and is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ale.rollout.episode import Episodes, Stage
from ale.rollout.filters import LOST_REPLAY, Filter, Rejection
from ale.rollout.tally import Tally
from ale.specs.algorithm import RolloutRequest
from ale.specs.scaffold import Responder
from ale.store import RunStore
from ale.trajectory import Trajectory

RESEED = 7_919
"""Added to a request's seed for each new try, so that the try is a new sample."""


@dataclass
class Rollouts:
    """Runs requests, keeps every trajectory, returns the good ones in the order of the requests."""

    episodes: Episodes
    store: RunStore
    finished: Callable[[Trajectory], None] = lambda trajectory: None
    judge: Callable[[Trajectory], Rejection | None] | None = None
    """Why a rollout cannot be trusted; None: the run's `Filter`."""
    lost_replays: Counter[str] = field(default_factory=Counter)
    """By group: requests that were given up because the replay of their expert never reached the start. Whoever reads it
    clears it."""
    _tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.judge is None:
            told = (option.driver.deterministic_tools for option in self.episodes.scaffold.options)
            tools = frozenset[str]().union(*told)
            self.judge = Filter(self.episodes.config, self.episodes.hooks, tools).rejection

    def metrics(self, stage: str, step: int) -> dict[str, float]:
        """What was rejected in a step since this was last asked (`Tally.metrics`)."""
        return self._tallies.pop((stage, step), Tally()).metrics()

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        stage: Stage,
        responders: Sequence[Responder | None] | None = None,
    ) -> list[Trajectory]:
        """Run all requests; `responders[i]` answers in the policy's place in request i."""
        results: list[Trajectory | None] = [None] * len(requests)
        queue = iter(range(len(requests)))
        self.episodes.expect(requests)

        async def worker() -> None:
            for i in queue:
                results[i] = await self._until_good(requests[i], stage, responders[i] if responders else None)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.episodes.config.concurrency, len(requests))):
                    group.create_task(worker())
        except ExceptionGroup as several:
            # One mistake in the configuration fails every worker alike; its sentence is what the user needs.
            raise several.exceptions[0] from several
        return [t for t in results if t is not None]

    async def _until_good(
        self, request: RolloutRequest, stage: Stage, responder: Responder | None
    ) -> Trajectory | None:
        assert self.judge is not None, "set when made"
        tally = self._tallies.setdefault((stage.name, stage.step), Tally())
        given_up = ""
        for attempt in range(self.episodes.config.max_resamples + 1):
            tried = replace(request, seed=request.seed + attempt * RESEED)
            trajectory = await self.episodes.run(tried, stage, responder)
            rejection = self.judge(trajectory)
            tally.finished += 1
            tally.resampled += attempt > 0
            if rejection is not None:
                tally.rejected[rejection.kind] += 1
                given_up = rejection.kind
                trajectory = replace(trajectory, rejected=rejection.reason, rejected_because=rejection.detail)
            self.store.add_trajectory(trajectory)
            self.episodes.hooks.call("ale_trajectory_finished", trajectory=trajectory)
            self.finished(trajectory)
            if rejection is None:
                return trajectory
        tally.unfilled += 1
        if given_up == LOST_REPLAY:
            self.lost_replays[request.group] += 1
        return None
