"""Another process dispatches to the replicas of a pool: it has a queue and targets of its own, and checks nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation
from ale_engines.pool.admission import Admission
from ale_engines.pool.dispatch import EngineTarget, Progress, dispatch

from .conftest import FakeReplica, ask, expected


class WorkerTarget(EngineTarget):
    """A replica as a rollout worker on another node sees it."""

    def __init__(self, replica: FakeReplica) -> None:
        super().__init__(replica.name, replica.slots, serving=True)
        self.replica = replica
        self.departing = False
        self.finished = self.faults = 0

    @property
    def max_context(self) -> int:
        return self.replica.max_context

    @property
    def ready(self) -> bool:
        return self.serving

    @property
    def leaving(self) -> bool:
        return self.departing

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self.replica.generate(request)

    def finish(self) -> None:
        self.finished += 1

    def broke_off(self) -> None:
        self.faults += 1


def targets_of(count: int) -> tuple[Admission, list[WorkerTarget]]:
    """A queue in front of so many replicas that are alive."""
    targets = [WorkerTarget(FakeReplica(name)) for name in "abcdef"[:count]]
    admission = Admission(lambda: None)
    for target in targets:
        target.replica.alive = True
        admission.router.targets.append(target)
    return admission, targets


@pytest.mark.parametrize("departing", [False, True])
async def test_what_a_place_breaks_off_goes_on_at_another_one(departing: bool) -> None:
    admission, (first, second) = targets_of(2)
    counts: Counter[str] = Counter()

    async def leave_at_five(replica: FakeReplica, position: int) -> None:
        if position == 5:
            first.serving, first.departing = False, departing
            await replica.interrupt()

    first.replica.before_token = leave_at_five
    request = ask("s", max_tokens=12, seed=9)
    result = await dispatch(admission, request, counts)
    assert result.token_ids == expected(request)
    assert result.logprobs == tuple(-1.0 - token for token in result.token_ids)
    assert (first.replica.sampled, second.replica.sampled) == (5, 7)
    assert (first.faults, first.finished, second.faults, second.finished) == (not departing, 0, 0, 1)
    assert counts == {"interruptions": 1}
    assert (first.active, second.active, admission.waiting) == (0, 0, 0)


@pytest.mark.parametrize("departing", [False, True])
async def test_a_generation_that_every_place_breaks_off_fails_unless_they_leave(departing: bool) -> None:
    admission, targets = targets_of(6)
    counts: Counter[str] = Counter()

    async def break_off(replica: FakeReplica, position: int) -> None:
        if sum(target.replica.interruptions for target in targets) < 5:
            await replica.interrupt()

    for target in targets:
        target.replica.before_token, target.departing = break_off, departing
    request = ask(max_tokens=6)
    if departing:
        assert (await dispatch(admission, request, counts)).token_ids == expected(request)
        assert counts["interruptions"] == 5
    else:
        with pytest.raises(EngineError, match=r"A generation was broken off 4 times, the last time: [a-f] broke"):
            await dispatch(admission, request, counts)
        assert sum(target.faults for target in targets) == 4
    assert not any(target.active for target in targets)


async def test_a_place_that_serves_no_more_when_its_turn_comes_gets_no_request() -> None:
    admission, (first, second) = targets_of(2)
    first.active, second.serving = first.slots, False
    running = asyncio.ensure_future(dispatch(admission, ask(), Counter()))
    await asyncio.sleep(0)
    assert admission.waiting == 1
    admission.leave(first)
    assert (admission.waiting, first.active) == (0, first.slots)
    first.serving, second.serving = False, True
    assert (await asyncio.wait_for(running, 10)).token_ids == expected(ask())
    assert (first.replica.served, len(second.replica.served)) == ([], 1)
    assert (first.active, second.active) == (first.slots - 1, 0)


async def test_a_generation_that_is_broken_off_at_its_last_token_is_complete() -> None:
    admission, (target,) = targets_of(1)
    request = ask(max_tokens=12)

    async def break_off(replica: FakeReplica, position: int) -> None:
        if position == 5:
            await replica.interrupt()

    target.replica.before_token = break_off
    target.replica.max_context = len(request.token_ids) + 5
    result = await dispatch(admission, request, Counter())
    assert (result.token_ids, result.finish_reason) == (expected(request)[:5], "length")
    assert len(target.replica.served) == 1


async def test_how_far_a_request_is_includes_what_an_earlier_place_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    admission, (first, second) = targets_of(2)
    request, running, seen = ask("s", max_tokens=12, seed=9), dict[int, Progress](), list[tuple[int, ...]]()
    whole = expected(request)

    async def leave_at_five(replica: FakeReplica, position: int) -> None:
        if position == 5:
            first.serving = False
            await replica.interrupt()

    async def look_at_three(replica: FakeReplica, position: int) -> None:
        if position == 3:
            seen.extend(running[id(request)].sampled_so_far(after).token_ids for after in (0, 4, 6))

    def sampled(rest: GenerateRequest, after: int) -> Generation:
        assert rest.token_ids == request.token_ids + whole[:5]
        return Generation(whole[5:8][after:], (-1.0,) * len(whole[5:8][after:]), (), "length")

    first.replica.before_token, second.replica.before_token = leave_at_five, look_at_three
    monkeypatch.setattr(second, "sampled_so_far", sampled)
    assert (await dispatch(admission, request, Counter(), running)).token_ids == whole
    assert seen == [whole[:8], whole[4:8], whole[6:8]]
    assert not running
