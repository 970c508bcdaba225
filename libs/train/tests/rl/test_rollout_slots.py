"""Which rollouts run at once, and how the limit follows the engine's cache."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_train.config.rl import RLConfig
from ale_train.rl.concurrency_limit import InFlightLimit, scoring_slots
from ale_train.rl.rollout_slots import IN_FRONT, RolloutSlots


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans()), max_size=12),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_no_more_than_the_limit_run_and_no_place_is_lost(
    rollouts: list[tuple[int, int, bool, bool]], limit: int, scoring: int
) -> None:
    """Each acts and is scored for some turns of the event loop, may be cancelled, and may be made again."""

    async def main() -> None:
        slots = RolloutSlots(limit, scoring)
        acting: set[int] = set()
        scored: set[int] = set()

        async def one(number: int, act: int, score: int, again: bool) -> None:
            for _ in range(1 + again):
                async with slots:
                    acting.add(number)
                    assert len(acting) <= limit
                    try:
                        for _ in range(act):
                            await asyncio.sleep(0)
                    finally:
                        acting.discard(number)
                    async with slots.scoring():
                        scored.add(number)
                        assert len(scored) <= scoring
                        try:
                            for _ in range(score):
                                await asyncio.sleep(0)
                        finally:
                            scored.discard(number)

        tasks = [asyncio.create_task(one(i, a, s, again)) for i, (a, s, _, again) in enumerate(rollouts)]
        for task, (act, _, cancelled, _) in zip(tasks, rollouts, strict=True):
            if cancelled:
                for _ in range(act):
                    await asyncio.sleep(0)
                task.cancel()
        async with asyncio.timeout(60):
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        assert (slots.running, slots.waiting) == (0, 0)
        async with slots:
            assert slots.running == 1

    asyncio.run(main())


async def test_what_is_made_again_comes_before_what_is_younger() -> None:
    slots, order = RolloutSlots(1, 1), []

    async def one(name: str, tries: int) -> None:
        for attempt in range(tries):
            async with slots:
                order.append(f"{name}{attempt}")
                await asyncio.sleep(0.03)
                async with slots.scoring():
                    await asyncio.sleep(0.01)

    await asyncio.gather(one("a", 2), one("b", 1), one("c", 1), one("d", 1))
    assert order == ["a0", "b0", "a1", "c0", "d0"]


async def test_what_is_in_front_comes_before_all_that_wait() -> None:
    slots, order = RolloutSlots(1, 1), []

    async def one(name: str) -> None:
        IN_FRONT.set(name == "spare")
        async with slots:
            order.append(name)
            await asyncio.sleep(0.01)

    await asyncio.gather(*map(one, ("a", "b", "c", "spare")))
    assert order == ["a", "spare", "b", "c"]


async def test_a_rollout_that_is_scored_holds_no_place() -> None:
    slots, scored, go = RolloutSlots(1, 1), asyncio.Event(), asyncio.Event()

    async def one() -> None:
        async with slots, slots.scoring():
            scored.set()
            await go.wait()

    task = asyncio.create_task(one())
    await scored.wait()
    async with asyncio.timeout(60), slots:
        assert slots.running == 1
    go.set()
    await task
    assert slots.left == 2


async def test_one_that_waits_to_be_scored_still_holds_its_place() -> None:
    """So there are at most as many sandboxes as slots of both kinds."""
    slots, may_end = RolloutSlots(1, 1), asyncio.Event()

    async def one() -> None:
        async with slots, slots.scoring():
            await may_end.wait()

    tasks = [asyncio.create_task(one()) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert (slots.running, slots.waiting) == (1, 1), "one is scored, one waits for that, one has no place"
    may_end.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)


async def test_a_higher_limit_lets_those_who_wait_run() -> None:
    slots = RolloutSlots(1, 1)
    async with slots:
        task = asyncio.create_task(slots.__aenter__())
        await asyncio.sleep(0)
        assert (slots.running, slots.waiting) == (1, 1)
        slots.limit = 2
        await asyncio.wait_for(task, 60)
        assert (slots.running, slots.waiting) == (2, 0)


LOOKS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 50), st.integers(0, 40), st.integers(0, 40), st.integers(0, 3)),
    max_size=60,
)


@given(LOOKS, st.integers(1, 64))
def test_the_limit_stays_between_one_and_rollout_concurrency(
    looks: list[tuple[float, int, int, int, int]], ceiling: int
) -> None:
    limit, left, preemptions = InFlightLimit(ceiling), 0, 0
    for use, running, at_work, queued, more in looks:
        left, preemptions = left + more, preemptions + more // 3
        before = limit.limit
        engine = {
            "server_cache_use": use,
            "server_running": at_work,
            "server_waiting": queued,
            "server_preemptions": preemptions,
        }
        now = limit.look(engine, running, left)
        assert 1 <= now <= ceiling
        if now > before:
            assert use < 0.6
        if running > before:
            assert now == before, "it waits for the effect of the last cut"


def test_the_limit_is_cut_and_grows_by_the_rule() -> None:
    limit = InFlightLimit(100)
    assert limit.look({"sampled_tokens": 7.0}, 100, 0) == 100, "an engine that reports no cache"
    assert limit.look({"engine-1/server_cache_use": 0.84, "server_cache_use": 0.5}, 60, 0) == 50, "60 x 0.7 / 0.84"
    assert limit.look({"engine-1/server_cache_use": 0.84, "server_cache_use": 0.5}, 49, 0) == 50, "an old report"
    assert limit.look({"server_cache_use": 0.9}, 60, 0) == 50, "more run than are allowed: the cut has not acted yet"
    assert limit.look({"server_cache_use": 0.5}, 40, 49) == 50, "no turnover yet"
    assert limit.look({"server_cache_use": 0.49}, 40, 50) == 63
    assert limit.look({"server_cache_use": 0.7, "server_preemptions": 1.0}, 63, 51) == 50
    queue = {"server_cache_use": 0.7, "server_running": 8.0}
    for waiting in (5.0, 6.0, 5.0, 5.0, 6.0, 5.0):
        assert limit.look({**queue, "server_waiting": waiting}, 50, 51) == 50, "five reports, one of them twice"
    assert limit.look({**queue, "server_waiting": 6.0}, 50, 51) == 45
    limit.look({"server_cache_use": 1.0}, 1, 51)
    assert limit.limit == 1


@pytest.mark.parametrize(
    ("chosen", "most", "slots"),
    [(None, None, 8), (3, None, 3), (None, 16, 4), (None, 100, 8), (None, 8, 1), (5, 16, 5)],
)
def test_rewards_leave_room_for_the_sandboxes_that_there_may_be(
    chosen: int | None, most: int | None, slots: int
) -> None:
    """With room for 16, eight agents leave eight: four that are scored, each of which may open a second one."""
    run: Any = SimpleNamespace(rollout=SimpleNamespace(concurrency=8), pool=SimpleNamespace(max_sandboxes=most))
    assert scoring_slots(run, RLConfig(scoring_concurrency=chosen)) == slots


def test_a_limit_that_was_lower_for_a_while_is_reported_once() -> None:
    slots = RolloutSlots(48, 1)
    slots.limit = 38
    slots.limit = 48
    assert [slots.take_lowest(), slots.take_lowest()] == [38, 48]
