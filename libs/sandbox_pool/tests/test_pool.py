"""The pool of sandboxes over a provider that fails when a test wants it to. With real sandboxes: tests/test_pool.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import Resets
from ale_sandbox_pool.config import PoolConfig
from ale_sandbox_pool.lease import LeasedSandbox
from ale_sandbox_pool.pool import SandboxPool
from ale_sandbox_pool.slots import RESET_S
from ale_sandbox_pool.times import Times
from ale_testing.fake_sandboxes import MemoryProvider, MemorySandbox

ONE, OTHER = SandboxSpec(image="one"), SandboxSpec(image="other")


@asynccontextmanager
async def pool_of(**settings: Any) -> AsyncIterator[tuple[SandboxPool, MemoryProvider]]:
    """A pool over sandboxes in memory; nothing of it may be left."""
    before = asyncio.all_tasks()
    provider = MemoryProvider()
    async with SandboxPool(provider, PoolConfig(**settings), provider.context.channel) as pool:
        yield pool, provider
    assert provider.alive == set(), "closing the pool stops everything"
    assert pool.slots.all == set()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before, "no task is left"


async def until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        await asyncio.sleep(0.001)


def inner(box: LeasedSandbox) -> MemorySandbox:
    """The provider's sandbox."""
    assert isinstance(box.inner, MemorySandbox)
    return box.inner


# -- who gets what


async def test_what_comes_back_is_reset_and_lent_out_again() -> None:
    async with pool_of() as (pool, provider):
        first = await pool.start_sandbox(SandboxSpec(env={"A": "1"}, files={"a": b"1"}, labels={"episode": "1"}))
        await first.stop()
        await until(lambda: pool.metrics()["idle"] == 1)
        assert inner(first).files == {}, "what is ready holds nothing of the last one"
        second = await pool.start_sandbox(SandboxSpec(env={"B": "2"}, files={"b": b"2"}, labels={"episode": "2"}))
        assert inner(second) is inner(first)
        assert second.spec.labels == {"episode": "2"}
        assert (await second.exec("env")).stdout == b"[('B', '2')]"
        assert (await second.download("b"), inner(second).files) == (b"2", {"b": b"2"})
        counts = pool.metrics()
        assert (counts["requests"], counts["cold_starts"], counts["warm_hits"]) == (2, 1, 1)
        assert provider.started == 1


async def test_another_kind_of_sandbox_is_another_sandbox() -> None:
    async with pool_of() as (pool, _):
        first = await pool.start_sandbox(ONE)
        await first.stop()
        await until(lambda: pool.metrics()["idle"] == 1)
        assert inner(await pool.start_sandbox(OTHER)) is not inner(first)
        assert inner(await pool.start_sandbox(ONE)) is inner(first)


@pytest.mark.parametrize(
    "settings",
    [{"max_uses": 1}, {}],
    ids=["used-once", "a-provider-that-cannot-reset"],
)
async def test_without_reuse_a_loan_ends_with_its_sandbox(settings: dict[str, Any]) -> None:
    async with pool_of(**settings) as (pool, provider):
        if not settings:
            pool.sandbox_type = Sandbox  # type: ignore[misc,type-abstract]
        for _ in range(3):
            box = await pool.start_sandbox(ONE)
            assert len(provider.alive) == 1
            await box.stop()
            assert provider.alive == set(), "it has ended when stop() returns, as without a pool"
        assert provider.started == 3


async def test_a_sandbox_serves_no_more_than_max_uses() -> None:
    async with pool_of(max_uses=3) as (pool, provider):
        served = []
        for _ in range(6):
            box = await pool.start_sandbox(ONE)
            served.append(box.id)
            await box.stop()
            await until(lambda: pool.metrics()["resetting"] + pool.metrics()["stopping"] == 0)
        assert served == ["box-1"] * 3 + ["box-2"] * 3
        assert provider.started == 2


@pytest.mark.parametrize("own", [{"id": "mine"}, {"lifetime_s": 100.0}, {"idle_s": 100.0}])
async def test_a_sandbox_with_a_name_or_an_end_of_its_own_is_not_lent_twice(own: dict[str, Any]) -> None:
    async with pool_of() as (pool, provider):
        box = await pool.start_sandbox(SandboxSpec(**own))
        assert inner(box).spec == SandboxSpec(**own)
        await box.stop()
        assert provider.alive == set()


async def test_nobody_reaches_a_sandbox_that_was_given_back() -> None:
    async with pool_of() as (pool, provider):
        box = await pool.start_sandbox(ONE)
        await box.stop()
        await box.stop()
        assert isinstance(box, Resets)
        calls = (
            box.exec("env"),
            box.upload({"x": b"1"}),
            box.download("x"),
            box.kill_agent_processes(),
            box.reset(ONE),
        )
        for call in calls:
            with pytest.raises(SandboxError, match="is gone: it was stopped"):
                await call
        assert provider.started == 1


async def test_a_sandbox_that_is_given_back_in_the_middle_of_a_call_is_not_lent_again() -> None:
    async with pool_of() as (pool, provider):
        box = await pool.start_sandbox(ONE)
        running = asyncio.ensure_future(box.exec("wait"))
        await asyncio.sleep(0)
        await asyncio.gather(box.stop(), box.stop())
        with pytest.raises(SandboxError):
            await running
        assert provider.alive == set()


async def test_a_reset_is_awaited_for_a_moment_before_another_one_is_started() -> None:
    async with pool_of() as (pool, provider):
        for _ in range(5):
            async with await pool.start_sandbox(ONE):
                pass
        assert provider.started == 1
        box = await pool.start_sandbox(ONE)
        provider.resets.clear()
        await box.stop()
        began = time.monotonic()
        assert inner(await pool.start_sandbox(ONE)) is not inner(box), "a reset that hangs is not awaited for long"
        assert time.monotonic() - began >= RESET_S
        provider.resets.set()


# -- limits


async def test_there_are_never_more_than_max_sandboxes_and_nobody_is_passed_over() -> None:
    async with pool_of(max_sandboxes=3) as (pool, provider):
        order: list[int] = []

        async def episode(i: int) -> None:
            async with await pool.start_sandbox(OTHER if i % 2 else ONE):
                order.append(i)
                await asyncio.sleep(0.002)

        await asyncio.gather(*(episode(i) for i in range(40)))
        assert all(abs(i - place) <= 3 for place, i in enumerate(order)), "first come, first served, whatever the kinds"
        assert provider.most == 3
        assert pool.metrics()["evicted"] > 0, "an idle sandbox of the wrong kind makes room"


async def test_no_more_than_starts_at_once_start_at_the_same_time() -> None:
    async with pool_of(starts_at_once=2) as (pool, provider):
        await asyncio.gather(*(pool.start_sandbox(ONE) for _ in range(20)))
        assert provider.most_starting == 2
        assert len(provider.alive) == 20


async def test_who_waits_too_long_is_told_what_to_raise() -> None:
    async with pool_of(max_sandboxes=1, wait_s=0.05) as (pool, provider):
        box = await pool.start_sandbox(ONE)
        with pytest.raises(
            SandboxError,
            match=r"No sandbox came free within 0.05 s: of 1 there are 1 \(1 lent\).*raise pool.max_sandboxes or "
            r"pool.wait_s",
        ) as caught:
            await pool.start_sandbox(ONE)
        assert caught.value.retryable
        assert pool.metrics()["timeouts"] == 1
        await box.stop()
        assert inner(await pool.start_sandbox(ONE)) is inner(box), "the pool is none the worse"
        assert provider.started == 1


async def test_a_hanging_start_takes_one_place_and_no_more() -> None:
    async with pool_of(max_sandboxes=2, starts_at_once=1, wait_s=0.1) as (pool, provider):
        provider.gate.clear()
        hanging = asyncio.ensure_future(pool.start_sandbox(ONE))
        await asyncio.sleep(0.01)
        with pytest.raises(SandboxError, match="1 starting"):
            await pool.start_sandbox(ONE)
        provider.gate.set()
        await (await hanging).stop()


# -- faults


async def test_a_failed_start_is_the_requests_own_and_costs_no_place() -> None:
    async with pool_of(max_sandboxes=1) as (pool, provider):
        for _ in range(3):
            provider.failures = [SandboxError("no more memory")]
            with pytest.raises(SandboxError, match="no more memory"):
                await pool.start_sandbox(ONE)
        await pool.start_sandbox(ONE)
        assert pool.metrics()["start_failures"] == 3


async def test_a_warm_sandbox_that_died_meanwhile_fails_nobody() -> None:
    async with pool_of(max_sandboxes=1) as (pool, provider):
        box = await pool.start_sandbox(ONE)
        await box.stop()
        await until(lambda: pool.metrics()["idle"] == 1)
        inner(box).dead = True
        other = await pool.start_sandbox(ONE)
        assert inner(other) is not inner(box)
        assert (await other.exec("env")).exit_code == 0
        assert pool.metrics()["resets_failed/failed"] == 1
        assert provider.most == 1, "the dead one had ended before the other was started"


async def test_what_is_not_shown_to_be_clean_is_stopped_and_told_of() -> None:
    async with pool_of() as (pool, provider):
        box = await pool.start_sandbox(ONE)
        provider.unclean = ["files"]
        await box.stop()
        await until(lambda: not provider.alive)
        assert pool.metrics()["resets_failed/files"] == 1
        assert provider.events == [
            ("sandbox_not_reset", {"sandbox_id": "box-1", "what": "files", "reason": "files: '/tmp/x' is left"})
        ]
        await pool.start_sandbox(ONE)
        assert provider.started == 2


async def test_cancelled_requests_leave_no_sandbox_and_no_lost_place() -> None:
    async with pool_of(max_sandboxes=2) as (pool, provider):
        for steps in range(12):
            provider.gate.clear()
            some = [asyncio.ensure_future(pool.start_sandbox(spec)) for spec in (ONE, OTHER, ONE)]
            for step in range(steps):
                await asyncio.sleep(0)
                if step == 5:
                    provider.gate.set()
            for task in some:
                task.cancel()
            for result in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(result, LeasedSandbox):
                    await result.stop()
            provider.gate.set()
            await until(lambda: pool.metrics()["starting"] + pool.metrics()["stopping"] + pool.metrics()["in_use"] == 0)
        held = [await pool.start_sandbox(spec) for spec in (ONE, OTHER)]
        assert len(held) == 2 >= len(provider.alive)


@pytest.mark.parametrize("max_uses", [1, 9], ids=["an-empty-place", "a-warm-sandbox"])
async def test_what_is_granted_in_the_moment_of_a_cancellation_goes_to_the_next(max_uses: int) -> None:
    async with pool_of(max_sandboxes=1, max_uses=max_uses) as (pool, _):
        box = await pool.start_sandbox(ONE)
        tasks = [asyncio.ensure_future(pool.start_sandbox(ONE)) for _ in range(2)]
        await asyncio.sleep(0)
        request = pool.slots.waiting[0]
        ending = asyncio.ensure_future(box.stop())
        for _ in range(1000):
            if not request.slot.done():
                await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert (await (await tasks[1]).exec("env")).exit_code == 0
        await ending


async def test_closing_ends_what_is_lent_what_starts_and_who_waits() -> None:
    provider = MemoryProvider()
    pool = SandboxPool(provider, PoolConfig(max_sandboxes=2, starts_at_once=1))
    await pool.start()
    lent = await pool.start_sandbox(ONE)
    provider.gate.clear()
    starting = asyncio.ensure_future(pool.start_sandbox(ONE))
    waiting = asyncio.ensure_future(pool.start_sandbox(ONE))
    await asyncio.sleep(0.01)
    await pool.close()
    assert provider.alive == set()
    for task in (starting, waiting):
        with pytest.raises(SandboxError, match="pool of sandboxes is closed"):
            await task
    await lent.stop()
    with pytest.raises(SandboxError, match="pool of sandboxes is closed"):
        await pool.start_sandbox(ONE)
    await pool.close()


# -- the caretaker


async def test_warm_sandboxes_are_there_before_they_are_asked_for() -> None:
    async with pool_of(warm=2) as (pool, provider):
        assert provider.started == 0, "which kinds will be wanted is not known before"
        box = await pool.start_sandbox(ONE)
        await until(lambda: pool.metrics()["idle"] == 2)
        again = await asyncio.gather(pool.start_sandbox(ONE), pool.start_sandbox(ONE))
        assert pool.metrics()["warm_hits"] == 2
        await until(lambda: pool.metrics()["idle"] == 2)
        assert len({box.id, *(b.id for b in again)}) == 3


async def test_warm_sandboxes_that_cannot_be_started_are_tried_again_with_patience() -> None:
    async with pool_of(warm=1) as (pool, provider):
        box = await pool.start_sandbox(ONE)
        await until(lambda: pool.metrics()["idle"] == 1)
        provider.failures = [SandboxError("not now") for _ in range(1000)]
        await pool.start_sandbox(ONE)
        await asyncio.sleep(0.2)
        assert pool.metrics()["start_failures"] == 1, "the second try comes later"
        provider.failures = []
        await until(lambda: pool.metrics()["idle"] == 1)
        await box.stop()


async def test_what_nobody_uses_is_stopped_down_to_the_warm_ones() -> None:
    async with pool_of(warm=1, idle_s=0.05) as (pool, provider):
        boxes = await asyncio.gather(*(pool.start_sandbox(ONE) for _ in range(5)))
        await asyncio.gather(*(box.stop() for box in boxes))
        await until(lambda: len(provider.alive) == 1 and pool.metrics()["idle"] == 1)
        await asyncio.sleep(0.15)
        assert len(provider.alive) == 1


async def test_warm_sandboxes_never_take_the_place_of_somebody_who_waits() -> None:
    async with pool_of(warm=4, max_sandboxes=4) as (pool, provider):
        boxes = [await pool.start_sandbox(ONE) for _ in range(2)]
        await until(lambda: pool.metrics()["idle"] == 2)
        boxes += await asyncio.gather(*(pool.start_sandbox(OTHER) for _ in range(2)))
        assert provider.most == 4
        assert len({box.id for box in boxes}) == 4


def test_times_are_given_as_quantiles() -> None:
    times = Times("wait_s")
    assert times.metrics() == {}
    for seconds in range(100):
        times.add(time.monotonic() - seconds)
    found = {name: round(value) for name, value in times.metrics().items()}
    assert found == {"wait_s_p50": 50, "wait_s_p95": 94, "wait_s_max": 99}
