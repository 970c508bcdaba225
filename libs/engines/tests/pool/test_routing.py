"""Sessions stay with their replica within its share, and no replica gets more than that."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale.errors import EngineError
from ale_engines.pool.admission import Admission
from ale_engines.pool.routing import REMEMBERED, SHARE, Router, Target

SLOTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
EVENTS = st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.booleans()), max_size=120)
"""A request of a session, and whether an older one ends before it."""


def router_of(slots: Sequence[int]) -> Router:
    """A router over serving targets with so many slots."""
    router = Router()
    router.targets = [Target(f"r{i}", count, serving=True) for i, count in enumerate(slots)]
    return router


@given(SLOTS, EVENTS)
def test_no_place_gets_more_than_its_slots_and_its_share(slots: list[int], events: list[tuple[str, bool]]) -> None:
    router, running = router_of(slots), list[Target]()
    for session, ends in events:
        if ends and running:
            running.pop(0).active -= 1
        target = router.choose(session)
        if target is None:
            assert len(running) == sum(slots), "a request waits only if all slots are taken"
            continue
        share = math.ceil(SHARE * (len(running) + 1) * target.slots / sum(slots))
        target.active += 1
        running.append(target)
        assert target.active <= min(target.slots, share)


@given(SLOTS, EVENTS)
def test_a_session_stays_while_its_place_is_within_its_share(slots: list[int], events: list[tuple[str, bool]]) -> None:
    router, running, homes = router_of(slots), list[Target](), dict[str, Target]()
    for session, ends in events:
        if ends and running:
            running.pop(0).active -= 1
        home = homes.get(session)
        within = home is not None and home.active < router.bound(home)
        if (target := router.choose(session)) is None:
            continue
        if within:
            assert target is home
        homes[session] = target
        target.active += 1
        running.append(target)


@given(SLOTS, st.lists(st.sampled_from("abcdef"), max_size=30))
def test_one_session_after_another_is_never_moved(slots: list[int], sessions: list[str]) -> None:
    router, homes = router_of(slots), dict[str, Target]()
    for session in sessions:
        target = router.choose(session)
        assert target is not None
        assert homes.setdefault(session, target) is target


def test_idle_sessions_are_spread_too() -> None:
    router = router_of([4, 4])
    chosen = [router.choose(f"s{i}") for i in range(6)]
    assert [chosen.count(target) for target in router.targets] == [3, 3]


def test_a_place_that_does_not_serve_or_has_old_weights_is_not_chosen() -> None:
    router = router_of([1, 2])
    small, large = router.targets
    home = router.choose("s")
    large.version = 3
    assert router.choose("s", version=2) is large
    assert router.choose("s", version=4) is None
    assert home is small
    large.serving = False
    assert router.choose("s") is small


def test_sessions_of_a_lost_place_and_the_oldest_ones_are_forgotten() -> None:
    router = router_of([1, 1])
    first = router.choose("s")
    assert first is not None
    router.forget(first)
    for i in range(4 * REMEMBERED):
        router.choose(f"new {i}")
    assert len(router._homes) == 2 * REMEMBERED
    assert sum(router._sessions.values()) == 2 * REMEMBERED
    assert max(router._sessions.values()) - min(router._sessions.values()) <= 2


async def order_of(admission: Admission, sessions: Sequence[str], frees: Sequence[Target]) -> list[int]:
    """The order in which requests of these sessions get the slots that become free one after another."""
    order: list[int] = []

    async def enter(number: int, session: str) -> None:
        await admission.enter(number, session, 0)
        order.append(number)

    tasks = [asyncio.ensure_future(enter(number, session)) for number, session in enumerate(sessions)]
    await asyncio.sleep(0)
    for target in frees:
        admission.leave(target)
        for _ in range(3):
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return order


def full_admission(slots: Sequence[int]) -> Admission:
    """A queue in front of targets that are full, and home to the session of their name."""
    admission = Admission(lambda: None)
    admission.router = router_of(slots)
    for target in admission.router.targets:
        admission.router._remember(target.name, target)
        target.active = target.slots
    return admission


async def test_requests_are_served_in_order() -> None:
    admission = full_admission([2])
    assert await order_of(admission, ["", "x", "r0", "", "y"], admission.router.targets * 4) == [0, 1, 2, 3]


async def test_a_free_slot_goes_to_a_session_that_belongs_there() -> None:
    admission = full_admission([2, 2])
    first, second = admission.router.targets
    assert await order_of(admission, ["r1", "r1", "r0", "new"], [first, first, second, second]) == [2, 3, 0, 1]


async def test_a_request_is_overtaken_at_most_as_often_as_there_are_slots() -> None:
    admission = full_admission([1, 2])
    order = await order_of(admission, ["r1", *["r0"] * 6], [admission.router.targets[0]] * 5)
    assert order == [1, 2, 3, 0, 4]


async def test_a_request_that_waits_again_keeps_its_turn() -> None:
    admission = full_admission([1])
    numbers = [admission.take_number() for _ in range(3)]
    later = asyncio.ensure_future(admission.enter(numbers[2], "", 0))
    await asyncio.sleep(0)
    earlier = asyncio.ensure_future(admission.enter(numbers[0], "", 0))
    await asyncio.sleep(0)
    admission.leave(admission.router.targets[0])
    assert await earlier is admission.router.targets[0]
    assert not later.done()
    later.cancel()
    await asyncio.wait([later])
    assert admission.waiting == 0


async def test_a_request_cancelled_when_it_was_just_served_gives_its_slot_back() -> None:
    admission = full_admission([1])
    (target,) = admission.router.targets
    waiting = asyncio.ensure_future(admission.enter(0, "", 0))
    await asyncio.sleep(0)
    admission.leave(target)
    assert target.active == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (target.active, admission.waiting) == (0, 0)


async def test_requests_that_wait_in_vain_get_the_refusal() -> None:
    refusals: list[EngineError] = []
    admission = Admission(lambda: refusals[0] if refusals else None)
    admission.router = router_of([1])
    admission.open = False
    waiting = asyncio.ensure_future(admission.enter(0, "", 0))
    await asyncio.sleep(0)
    refusals.append(EngineError("There is nobody."))
    admission.serve()
    for call in (waiting, admission.enter(1, "", 0)):
        with pytest.raises(EngineError, match="There is nobody"):
            await call
