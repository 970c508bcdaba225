"""The pool's limits: how many sandboxes there are, how many start at once, and how long a request waits."""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import SandboxError

from .conftest import ONE, OTHER, inner, pool_of


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
    async with pool_of(max_sandboxes=1, wait_s=0.5) as (pool, provider):
        box = await pool.start_sandbox(ONE)
        with pytest.raises(
            SandboxError,
            match=r"No sandbox came free within 0.5 s: of 1 there are 1 \(1 lent\).*raise pool.max_sandboxes or "
            r"pool.wait_s",
        ) as caught:
            await pool.start_sandbox(ONE)
        assert caught.value.retryable
        assert pool.metrics()["timeouts"] == 1
        await box.stop()
        assert inner(await pool.start_sandbox(ONE)) is inner(box), "the pool is none the worse"
        assert provider.started == 1


async def test_a_hanging_start_takes_one_place_and_no_more() -> None:
    async with pool_of(max_sandboxes=2, starts_at_once=1, wait_s=0.5) as (pool, provider):
        provider.gate.clear()
        hanging = asyncio.ensure_future(pool.start_sandbox(ONE))
        await asyncio.sleep(0.01)
        with pytest.raises(SandboxError, match="1 starting"):
            await pool.start_sandbox(ONE)
        provider.gate.set()
        await (await hanging).stop()
