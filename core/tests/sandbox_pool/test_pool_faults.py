"""Faults, cancellations and the end of the pool leave no sandbox and cost no place."""

from __future__ import annotations

import asyncio

import pytest

from ale.config.pool import PoolConfig
from ale.errors import SandboxError
from ale.rollout.sandbox_pool.lease import LeasedSandbox
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale_testing.fake_sandboxes import MemoryProvider

from .conftest import ONE, OTHER, inner, pool_of, until


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
