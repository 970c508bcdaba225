"""The sandboxes that the pool keeps warm are started before they are asked for, and surplus ones are stopped."""

from __future__ import annotations

import asyncio

from ale.errors import SandboxError

from .conftest import ONE, OTHER, pool_of, until


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
