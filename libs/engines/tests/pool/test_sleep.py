"""Replicas fall asleep and wake up: no generation is lost by it, and all of it is sampled by current weights."""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import EngineError
from ale.specs.engine import PolicyVersion
from ale_engines.pool import sleep
from ale_engines.pool.member import State
from ale_testing.async_tests import cancelled

from .conftest import FakeReplica, ask, expected, policy, pool_of, until


async def wait_at_five(replica: FakeReplica, position: int) -> None:
    """Sample five tokens, and more once it was interrupted."""
    if position == 5:
        await until(lambda: replica.interruptions > 0)


async def test_a_replica_that_falls_asleep_gives_its_generations_to_others() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    first.before_token = wait_at_five
    async with pool_of(first, second) as pool:
        await pool.load_weights(policy(3))
        request = ask("s", max_tokens=12, seed=9)
        running = asyncio.ensure_future(pool.generate(request))
        await until(lambda: first.sampled == 5)
        await pool.shrink(["a"])
        assert (first.sleeping, first.running, second.sleeping) == (True, 0, False)
        result = await asyncio.wait_for(running, 10)
        assert result.token_ids == expected(request, 3)
        assert result.logprobs == tuple(-1.0 - token for token in result.token_ids)
        assert (result.versions, result.finish_reason) == ((3,) * 12, "length")
        (rest,) = second.served
        assert rest.token_ids == request.token_ids + result.token_ids[:5]
        metrics = pool.metrics()
        assert (metrics["replicas"], metrics["replicas_serving"], metrics["replicas_asleep"]) == (2, 1, 1)
        assert (metrics["interruptions"], metrics["restarts"]) == (1, 0)
        assert "a/server_cache_use" not in metrics
        await asyncio.gather(*(pool.generate(ask(f"s{i}")) for i in range(6)))
        assert len(first.served) == 1
        await pool.shrink(["a"])
        await pool.expand(["a"])
        await pool.expand(["a"])
        assert not first.sleeping
        await asyncio.gather(*(pool.generate(ask(f"t{i}")) for i in range(6)))
        assert len(first.served) > 1


async def test_a_replica_that_sleeps_is_not_checked_and_gets_no_weights() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second) as pool:
        await pool.shrink(["a"])
        first.kill()
        await asyncio.wait_for(pool.load_weights(policy(1)), 10)
        await asyncio.sleep(0.2)
        assert (first.starts, first.version, second.version, pool.version) == (1, 0, 1, 1)
        await pool.expand(["a"])
        await until(lambda: pool.metrics()["replicas_serving"] == 2)
        assert (first.starts, first.version) == (2, 1)


async def test_a_replica_that_wakes_up_loads_the_newest_weights_before_it_serves() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    loading, go_on = asyncio.Event(), asyncio.Event()

    async def wait(replica: FakeReplica, policy: PolicyVersion) -> None:
        if policy.version == 2:
            loading.set()
            await go_on.wait()

    async with pool_of(first, second) as pool:
        await pool.shrink(["a"])
        await pool.load_weights(policy(1))
        await pool.load_weights(policy(2))
        first.before_load = wait
        waking = asyncio.ensure_future(pool.expand(["a"]))
        await asyncio.wait_for(loading.wait(), 10)
        await asyncio.wait_for(pool.load_weights(policy(3)), 10)
        assert pool.version == 3, "one that wakes up does not serve yet"
        results = await asyncio.gather(*(pool.generate(ask(f"s{i}")) for i in range(6)))
        assert {version for result in results for version in result.versions} == {3}
        assert not first.served
        go_on.set()
        await asyncio.wait_for(waking, 10)
        assert (first.version, pool.metrics()["replicas_serving"], pool.metrics()["restarts"]) == (3, 2, 0)
        await asyncio.gather(*(pool.generate(ask(f"t{i}")) for i in range(6)))
        assert first.served


async def test_weights_that_were_lost_asleep_are_loaded_again() -> None:
    replicas = FakeReplica("a"), FakeReplica("b")
    for replica in replicas:
        replica.forgetful = True
    async with pool_of(*replicas) as pool:
        await pool.load_weights(policy(4))
        for stop, go_on in ((lambda: pool.shrink(["a"]), lambda: pool.expand(["a"])), (pool.sleep, pool.wake)):
            await stop()
            await go_on()
            assert [replica.version for replica in replicas] == [4, 4]
        assert set((await pool.generate(ask())).versions) == {4}


async def test_a_pool_whose_replicas_all_sleep_takes_weights_and_its_requests_wait() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second) as pool:
        await pool.load_weights(policy(1))
        await pool.shrink(["a", "b"])
        waiting = asyncio.ensure_future(pool.generate(ask()))
        await asyncio.wait_for(pool.load_weights(policy(5)), 10)
        assert (pool.version, first.version, second.version) == (5, 1, 1)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await pool.expand(["b"])
        result = await asyncio.wait_for(waiting, 10)
        assert (result.token_ids, set(result.versions)) == (expected(ask(), 5), {5})
        assert (first.sleeping, second.sleeping, pool.metrics()["waiting"]) == (True, False, 0)


async def test_what_runs_when_the_whole_pool_falls_asleep_goes_on_when_it_wakes_up() -> None:
    replica = FakeReplica("a")
    replica.before_token = wait_at_five
    async with pool_of(replica) as pool:
        request = ask(max_tokens=12)
        running = asyncio.ensure_future(pool.generate(request))
        await until(lambda: replica.sampled == 5)
        await pool.sleep()
        await pool.load_weights(policy(2))
        await asyncio.sleep(0.02)
        assert not running.done()
        await pool.wake()
        result = await asyncio.wait_for(running, 10)
        assert result.versions == (0,) * 5 + (2,) * 7
        assert replica.sampled == 12


@pytest.mark.parametrize("version", [0, 4])
async def test_a_replica_that_does_not_wake_up_is_started_again(version: int) -> None:
    notes: list[str] = []
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second, notes=notes) as pool:
        if version:
            await pool.load_weights(policy(version))
        await pool.shrink(["a"])
        first.failing_wakes = 1
        await pool.expand(["a"])
        await until(lambda: pool.metrics()["replicas_serving"] == 2)
        assert (first.starts, first.version, first.sleeping) == (2, version, False)
        assert notes == [
            "a is started again: a does not wake up.",
            f"a serves again, with version {version}.",
        ]
        await asyncio.gather(*(pool.generate(ask(f"s{i}")) for i in range(4)))
        assert first.served


@pytest.mark.parametrize("times", [1, 2])
async def test_a_replica_that_does_not_fall_asleep_is_started_again_and_tries_once_more(times: int) -> None:
    replicas = [FakeReplica(name) for name in "abc"]
    replicas[0].failing_sleeps = times
    async with pool_of(*replicas) as pool:
        if times > 1:
            with pytest.raises(EngineError, match="a cannot sleep"):
                await pool.shrink(["a", "b"])
            assert [replica.sleeping for replica in replicas] == [False, True, False]
            await until(lambda: pool.metrics()["replicas_serving"] == 2)
        await pool.shrink(["a", "b"])
        assert [replica.sleeping for replica in replicas] == [True, True, False]
        assert [replica.starts for replica in replicas] == [1 + times, 1, 1]


@pytest.mark.parametrize("suspected", [False, True])
async def test_a_replica_that_has_died_is_started_again_before_it_sleeps(suspected: bool) -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second) as pool:
        first.kill()
        if suspected:
            pool.suspect("a")
        else:
            first.failing_sleeps = 1
        await asyncio.wait_for(pool.shrink(["a"]), 10)
        assert (first.sleeping, first.starts, pool.metrics()["replicas_serving"]) == (True, 2, 1)


async def test_a_caller_that_goes_away_leaves_no_replica_half_asleep() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    go_on = asyncio.Event()

    async def wait(replica: FakeReplica, position: int) -> None:
        await go_on.wait()

    async def wait_to_load(replica: FakeReplica, policy: PolicyVersion) -> None:
        await go_on.wait()

    first.before_token, first.before_load = wait, wait_to_load
    async with pool_of(first, second) as pool:
        running = asyncio.ensure_future(pool.generate(ask()))
        await until(lambda: first.running == 1)
        assert await cancelled(pool.shrink(["a"]), 0.02)
        assert not first.sleeping
        go_on.set()
        await until(lambda: pool.metrics()["replicas_asleep"] == 1)
        assert (await asyncio.wait_for(running, 10)).token_ids == expected(ask())
        await pool.load_weights(policy(1))
        go_on.clear()
        assert await cancelled(pool.expand(["a"]), 0.02)
        assert pool.metrics()["replicas_asleep"] == 1
        go_on.set()
        await until(lambda: pool.metrics()["replicas_serving"] == 2)
        assert (first.version, first.starts) == (1, 1)


async def test_close_ends_a_change_under_way() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")

    async def hang(replica: FakeReplica, position: int) -> None:
        await asyncio.Event().wait()

    first.before_token = hang
    async with pool_of(first, second) as pool:
        running = asyncio.ensure_future(pool.generate(ask()))
        await until(lambda: first.running == 1)
        shrinking = asyncio.ensure_future(pool.shrink(["a"]))
        await asyncio.sleep(0.01)
        await pool.close()
        with pytest.raises(EngineError, match="closed while it put replicas to sleep"):
            await asyncio.wait_for(shrinking, 10)
        running.cancel()
        await asyncio.wait([running])


async def test_a_replica_falls_asleep_although_a_generation_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep, "END_S", 0.1)
    notes: list[str] = []
    first, second = FakeReplica("a"), FakeReplica("b")
    go_on = asyncio.Event()

    async def hang(replica: FakeReplica, position: int) -> None:
        await go_on.wait()

    first.before_token = hang
    async with pool_of(first, second, notes=notes) as pool:
        running = asyncio.ensure_future(pool.generate(ask()))
        await until(lambda: first.running == 1)
        await pool.shrink(["a"])
        assert first.sleeping
        assert notes == ["a leaves service, although it has not ended all generations within 0.1 s."]
        go_on.set()
        assert (await asyncio.wait_for(running, 10)).token_ids == expected(ask())
        assert (first.starts, pool.metrics()["replicas_asleep"]) == (1, 1)


async def test_a_replica_leaves_when_the_requests_of_others_have_ended_too() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second) as pool:
        for leave in (lambda: pool.shrink(["a"]), lambda: pool.leave("a")):
            first.others, before = 2, first.interruptions
            leaving = asyncio.ensure_future(leave())
            await until(lambda before=before: first.interruptions >= before + 2)
            assert not leaving.done()
            first.others = 0
            await asyncio.wait_for(leaving, 10)
            if first.sleeping:
                await pool.expand(["a"])


async def test_what_a_replica_generates_is_interrupted_when_all_know_that_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    known = asyncio.Event()
    async with pool_of(first, second) as pool:
        pool._members.deliver_changes = known.wait
        leaving = asyncio.ensure_future(pool.shrink(["a"]))
        await until(lambda: pool.replica_statuses()[0].state is State.LEAVING)
        await asyncio.sleep(0.01)
        assert first.interruptions == 0
        known.set()
        await asyncio.wait_for(leaving, 10)
        assert (first.interruptions, first.sleeping) == (1, True)
        known.clear()  # one that has stopped never hears of it
        monkeypatch.setattr(sleep, "KNOWN_S", 0.05)
        await asyncio.wait_for(pool.shrink(["b"]), 10)
        assert second.sleeping


async def test_weights_go_to_one_after_another_while_others_have_requests() -> None:
    replicas = [FakeReplica(name) for name in "ab"]
    loading: set[str] = set()
    at_once: list[int] = []

    async def count(replica: FakeReplica, policy: PolicyVersion) -> None:
        loading.add(replica.name)
        at_once.append(len(loading))
        await asyncio.sleep(0.01)
        loading.discard(replica.name)

    for replica in replicas:
        replica.before_load, replica.others = count, 1
    async with pool_of(*replicas) as pool:
        await pool.load_weights(policy(1))
        assert at_once == [1, 1]
        for replica in replicas:
            replica.others = 0
        await pool.load_weights(policy(2))
        assert at_once == [1, 1, 1, 2]


async def test_a_replica_that_sleeps_can_leave_and_names_that_do_not_exist_are_refused() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second) as pool:
        await pool.shrink(["a"])
        assert await pool.leave("a") is first
        assert (first.sleeping, first.interruptions, first.closes) == (True, 1, 0)
        for call in (pool.shrink(["b", "a"]), pool.expand(["a"])):
            with pytest.raises(EngineError, match="no replica 'a'"):
                await call
        assert not second.sleeping
        with pytest.raises(EngineError, match="b is the last replica"):
            await pool.leave("b")
        await pool.generate(ask())
        await pool.join(first)
        await pool.shrink(["a"])
        assert await pool.leave("b") is second, "the other one may wake up"
        waiting = asyncio.ensure_future(pool.generate(ask()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await pool.expand(["a"])
        await asyncio.wait_for(waiting, 10)
    await second.close()


async def test_a_replica_that_was_paused_when_it_fell_asleep_samples_when_it_wakes_up() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second) as pool:
        await pool.pause()
        await pool.shrink(["a"])
        await pool.resume()
        assert (first.paused, second.paused) == (True, False)
        await pool.expand(["a"])
        assert not first.paused
