"""Spare rollouts: a group does not wait for one whose sandbox failed or whose tools are slow.

1. A spare begins where a rollout of the group was given up, or where one has spent three times as long as the median
   of those that have finished, half of the group at least, *outside the engine*: on its tools and its sandbox. One that
   samples long gets none, since the spares that win would be the short ones.
2. The first of the two that can be trusted is the group's. The other one is ended, and stored as rejected (`spare`).
3. A group that begins on an expert's path has no spares: its rollouts are prepared together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ale.errors import AleError
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.filters import Rejection
from ale.rollout.scheduler import RESEED, Rollouts
from ale.session.session import RecordedSession
from ale.specs.algorithm import RolloutRequest
from ale.store.run_store import REJECT
from ale.trajectory import Trajectory
from ale_rl.watchdog import await_chain

SPARE = "spare"
SPARE_SEED = 15_485_863
"""It is added to a request's seed for its spare."""
SLOW = 3.0
LOOK_S = 0.5

Task = asyncio.Task[Any]


@dataclass(slots=True)
class Clocked:
    """The seconds of a rollout."""

    began: float
    at_engine: float = 0.0
    requests: int = 0
    """How many of its requests are at the engine, since when."""
    since: float = 0.0

    def outside(self, now: float) -> float:
        """Return its seconds so far without those at the engine."""
        return now - self.began - self.at_engine - (now - self.since if self.requests else 0.0)


@dataclass(slots=True)
class Member:
    """A place in a group: the rollout that was planned, perhaps a spare, and the one of them that was good first."""

    request: RolloutRequest
    tries: dict[Task, RolloutRequest] = field(default_factory=dict)
    good: Trajectory | None = None


class Spares:
    """It makes the rollouts of groups as `Rollouts.run` does, with at most `most` spares in each."""

    def __init__(self, rollouts: Rollouts, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rollouts, self._most, self._clock = rollouts, most, clock
        self._clocks: WeakKeyDictionary[Task, Clocked] = WeakKeyDictionary()
        self._lost: WeakSet[Task] = WeakSet()
        """Rollouts that were ended because the other one of their place was first."""
        self._begun = self._lost_tokens = self._kept_tokens = 0
        if self._most:
            self._judge, rollouts.judge = rollouts.judge, self._reject_lost

    @contextmanager
    def sampling(self, session: RecordedSession) -> Iterator[None]:
        """A request of a session is at the engine."""
        clocked = self._clocks.get(session.opened_by) if session.opened_by is not None else None
        if clocked is None:
            yield
            return
        if not clocked.requests:
            clocked.since = self._clock()
        clocked.requests += 1
        try:
            yield
        finally:
            clocked.requests -= 1
            if not clocked.requests:
                clocked.at_engine += self._clock() - clocked.since

    def metrics(self) -> dict[str, float]:
        """Return what happened since the last call: `spares` that began, and `spare_length_ratio`, the tokens of
        rollouts that were ended to those of the others of their places; nothing where there may be none."""
        if not self._most:
            return {}
        found = {"spares": float(self._begun)}
        if self._kept_tokens:
            found["spare_length_ratio"] = self._lost_tokens / self._kept_tokens
        self._begun = self._lost_tokens = self._kept_tokens = 0
        return found

    async def run(self, requests: Sequence[RolloutRequest], stage: StageInfo) -> list[Trajectory]:
        """Make the rollouts of a group; returns the good ones in the order of the requests."""
        if not self._most or any(request.start is not None for request in requests):
            return await self._rollouts.run(requests, stage)
        members = [Member(request) for request in requests]
        left = self._most
        try:
            for member in members:
                self._begin(member, member.request, stage)
            while under_way := [task for member in members for task in member.tries]:
                await asyncio.wait(under_way, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                self._clock_new_ones()
                for member in members:
                    self._take_in(member)
                for member in self._in_need(members)[:left]:
                    left, self._begun = left - 1, self._begun + 1
                    request = replace(member.request, seed=member.request.seed + SPARE_SEED)
                    self._begin(member, request, stage)
        finally:
            left_over = [task for member in members for task in member.tries]
            for task in left_over:
                task.cancel()
            if left_over:
                await asyncio.wait(left_over)
        return [member.good for member in members if member.good is not None]

    def _begin(self, member: Member, request: RolloutRequest, stage: StageInfo) -> None:
        member.tries[asyncio.ensure_future(self._make(request, stage))] = request

    async def _make(self, request: RolloutRequest, stage: StageInfo) -> Trajectory | None:
        """Make a rollout; after an interruption it may be there, also as the spare of the one that was planned."""
        store, tries = self._rollouts.store, self._rollouts.episodes.config.max_resamples + 1
        if store.resumed:
            seeds = [request.seed + SPARE_SEED + attempt * RESEED for attempt in range(tries)]
            found = store.find_rollout(stage.name, stage.step, request.group, seeds)
            if found is not None:
                return found
        return next(iter(await self._rollouts.run([request], stage)), None)

    def _running(self, request: RolloutRequest) -> Task | None:
        return next((task for task, its in self._rollouts.running.items() if its is request), None)

    def _clock_new_ones(self) -> None:
        for task in self._rollouts.running:
            if task not in self._clocks:
                self._clocks[task] = Clocked(self._clock())

    def _take_in(self, member: Member) -> None:
        """Note what has ended in a place; its first good rollout ends the other one. Raises what a rollout raised."""
        for task in [task for task in member.tries if task.done()]:
            del member.tries[task]
            made = None if task.cancelled() else task.result()
            if made is None:
                continue
            if member.good is None:
                member.good = made
                for other, its_request in member.tries.items():
                    self._end(other, its_request)
                    self._kept_tokens += made.sampled_tokens
            else:  # it was as good as finished when the other one was
                self._lost_tokens += made.sampled_tokens
                self._rollouts.store.change((REJECT, [(SPARE, made.id)]))

    def _end(self, outer: Task, request: RolloutRequest) -> None:
        """End a rollout: at once if it has not begun, and so that it is stored if it acts or is scored."""
        running = self._running(request)
        if running is None:
            outer.cancel()
        elif any(frame.f_code is Episodes.run.__code__ for frame in await_chain(running)):
            self._lost.add(running)
            self._rollouts.episodes.ended[running] = AleError("Another rollout of its place in the group was first.")
            running.cancel()

    def _reject_lost(self, trajectory: Trajectory) -> Rejection | None:
        if asyncio.current_task() in self._lost:
            self._lost_tokens += trajectory.sampled_tokens
            return Rejection(SPARE, SPARE, final=True)
        assert self._judge is not None, "the run's rollouts have one"
        return self._judge(trajectory)

    def _in_need(self, members: Sequence[Member]) -> list[Member]:
        """Return the members that may get a spare now."""
        given_up = [member for member in members if member.good is None and not member.tries]
        finished = [outside_the_engine(member.good) for member in members if member.good is not None]
        if 2 * len(finished) < len(members):
            return given_up
        now, limit = self._clock(), SLOW * median(finished)
        slow = []
        for member in members:
            if member.good is None and len(member.tries) == 1:
                (request,) = member.tries.values()
                running = self._running(request)
                if running is not None and running in self._clocks and self._clocks[running].outside(now) > limit:
                    slow.append(member)
        return given_up + slow


def outside_the_engine(trajectory: Trajectory) -> float:
    """Return the seconds that a rollout spent on its tools and its sandbox."""
    return max(0.0, trajectory.seconds - sum(chunk.seconds for chunk in trajectory.chunks))
