"""Spare rollouts: a group does not wait for a rollout whose sandbox failed or whose tools are slow.

1. A spare begins where a rollout of the group was given up, or where one has spent three times as long as the median
   of those that have finished, half of the group at least, *outside the engine*: on its tools, its sandbox and its
   reward, five seconds at least. One that samples long gets none, since the spares that win would be the short ones.
2. A spare does not queue. The first of the two that can be trusted is the group's. The other one is ended and stored,
   rejected as `spare`.
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
from weakref import WeakKeyDictionary

from ale.errors import AleError
from ale.rollout.episode import StageInfo
from ale.rollout.filters import Rejection
from ale.rollout.scheduler import RESEED, Rollouts
from ale.session.session import RecordedSession
from ale.specs.algorithm import RolloutRequest
from ale.store.run_store import REJECT
from ale.trajectory import Trajectory
from ale_train.rl.rollout_slots import IN_FRONT
from ale_train.rl.watchdog import await_chain, is_episode

SPARE = "spare"
SPARE_SEED = 15_485_863
"""The nth spare of a request has its seed plus n times this."""
SLOW, LEAST_S = 3.0, 5.0
LOOK_S = 0.5

Task = asyncio.Task[Any]


class Outrun(AleError):
    """A rollout was ended because the other one of its place was first."""

    kind = "spare"


@dataclass(slots=True)
class Clocked:
    """The seconds of a rollout."""

    began: float
    at_engine: float = 0.0
    requests: int = 0
    """How many of its requests are at the engine; `since` is when the first of them came there."""
    since: float = 0.0

    def outside(self, now: float) -> float:
        """Return its seconds so far without those at the engine."""
        return now - self.began - self.at_engine - (now - self.since if self.requests else 0.0)


@dataclass(slots=True)
class Member:
    """A place in a group: the rollout that was planned, perhaps spares, and the one of them that was good first."""

    request: RolloutRequest
    spares: int = 0
    tries: dict[Task, RolloutRequest] = field(default_factory=dict)
    good: Trajectory | None = None


class SpareRollouts:
    """Makes the rollouts of groups as `Rollouts.run` does, with at most `most` spares in each group."""

    def __init__(self, rollouts: Rollouts, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rollouts, self._most, self._clock = rollouts, most, clock
        self._clocks: WeakKeyDictionary[Task, Clocked] = WeakKeyDictionary()
        self._lost: WeakKeyDictionary[Task, int] = WeakKeyDictionary()
        """Rollouts that were ended because the other one of their place was first, and that one's tokens."""
        self._begun = self._lost_tokens = self._kept_tokens = 0
        if self._most:
            self._judge, rollouts.judge = rollouts.judge, self._reject_lost

    @contextmanager
    def sampling(self, session: RecordedSession) -> Iterator[None]:
        """A request of a session is at the engine."""
        if not self._most or session.opened_by is None:
            yield
            return
        clocked = self._clocks.setdefault(session.opened_by, Clocked(self._clock()))
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
        rollouts that were ended to those of the others of their places; nothing if spares are off."""
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
                member.tries[asyncio.ensure_future(self._make(member.request, stage))] = member.request
            while under_way := [task for member in members for task in member.tries]:
                await asyncio.wait(under_way, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                self._clock_running()
                for member in members:
                    self._take_in(member, stage)
                for member in self._in_need(members)[:left]:
                    left, self._begun, member.spares = left - 1, self._begun + 1, member.spares + 1
                    request = replace(member.request, seed=member.request.seed + SPARE_SEED * member.spares)
                    member.tries[asyncio.ensure_future(self._make_spare(request, stage))] = request
        finally:
            left_over = [task for member in members for task in member.tries]
            for task in left_over:
                task.cancel()
            await asyncio.gather(*left_over, return_exceptions=True)
        return [member.good for member in members if member.good is not None]

    async def _make(self, request: RolloutRequest, stage: StageInfo) -> Trajectory | None:
        """Make a rollout; after an interruption a spare of it may be there."""
        if self._rollouts.store.resumed:
            for nth in range(1, self._most + 1):
                found = self._find(replace(request, seed=request.seed + SPARE_SEED * nth), stage)
                if found is not None:
                    return found
        return next(iter(await self._rollouts.run([request], stage)), None)

    async def _make_spare(self, request: RolloutRequest, stage: StageInfo) -> Trajectory | None:
        IN_FRONT.set(True)
        return next(iter(await self._rollouts.run([request], stage)), None)

    def _find(self, request: RolloutRequest, stage: StageInfo) -> Trajectory | None:
        """Return the good rollout of a request that is stored, if there is one."""
        seeds = [request.seed + i * RESEED for i in range(self._rollouts.episodes.config.max_resamples + 1)]
        return self._rollouts.store.find_rollout(stage.name, stage.step, request.group, request.task.id, seeds)

    def _running(self, request: RolloutRequest) -> Task | None:
        return next((task for task, its in self._rollouts.running.items() if its is request), None)

    def _clock_running(self) -> None:
        """Clock what runs, and forget what does not: one that is made again begins again."""
        for task in [task for task in self._clocks if task not in self._rollouts.running]:
            del self._clocks[task]
        for task in self._rollouts.running:
            self._clocks.setdefault(task, Clocked(self._clock()))

    def _take_in(self, member: Member, stage: StageInfo) -> None:
        """Note what has ended in a place; its first good rollout ends the other one. Raises what a rollout raised."""
        for task in [task for task in member.tries if task.done()]:
            request = member.tries.pop(task)
            # One that had been stored when it was cancelled is in the store alone.
            made = self._find(request, stage) if task.cancelled() else task.result()
            if made is None:
                continue
            if member.good is None:
                member.good = made
                for other, its_request in member.tries.items():
                    self._end(other, its_request, made.sampled_tokens)
            else:  # it was as good as finished when the other one was
                self._note_lost(made, member.good.sampled_tokens)
                self._rollouts.store.change((REJECT, [(SPARE, made.id)]))

    def _end(self, outer: Task, request: RolloutRequest, kept_tokens: int) -> None:
        """End a rollout: at once if it has not begun, and so that it is stored if it acts or is scored."""
        running = self._running(request)
        if running is None:
            outer.cancel()
        elif any(is_episode(frame) for frame in await_chain(running)):
            self._lost[running] = kept_tokens
            self._rollouts.episodes.ended[running] = Outrun("Another rollout of its place in the group was first.")
            running.cancel()

    def _note_lost(self, trajectory: Trajectory, kept_tokens: int) -> None:
        self._lost_tokens += trajectory.sampled_tokens
        self._kept_tokens += kept_tokens

    def _reject_lost(self, trajectory: Trajectory) -> Rejection | None:
        task = asyncio.current_task()
        if task is not None and task in self._lost:
            self._note_lost(trajectory, self._lost[task])
            return Rejection(SPARE, SPARE, final=True)
        assert self._judge is not None, "the run's rollouts have one"
        return self._judge(trajectory)

    def _in_need(self, members: Sequence[Member]) -> list[Member]:
        """Return the members that may get a spare now."""
        given_up = [member for member in members if member.good is None and not member.tries]
        finished = [outside_the_engine(member.good) for member in members if member.good is not None]
        if 2 * len(finished) < len(members):
            return given_up
        now, limit = self._clock(), max(LEAST_S, SLOW * median(finished))
        slow = []
        for member in members:
            if member.good is None and len(member.tries) == 1:
                (request,) = member.tries.values()
                running = self._running(request)
                if running is not None and running in self._clocks and self._clocks[running].outside(now) > limit:
                    slow.append(member)
        return given_up + slow


def outside_the_engine(trajectory: Trajectory) -> float:
    """Return the seconds that a rollout spent on its tools, its sandbox and its reward."""
    return max(0.0, trajectory.seconds - sum(chunk.seconds for chunk in trajectory.chunks))
