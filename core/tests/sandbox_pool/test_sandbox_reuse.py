"""A sandbox that comes back to the pool is reset and lent again, to requests of the same kind and to one at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.rollout.sandbox_pool.slots import RESET_S
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import Resets

from .conftest import ONE, OTHER, inner, pool_of, until


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
