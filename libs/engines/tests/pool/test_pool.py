"""The pool is one engine: it spreads requests, keeps sessions where their prefixes are, and passes all else on."""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.engine import MemoryTicket, PolicyVersion
from ale_engines.pool.engines import Engines
from ale_testing.async_tests import cancelled

from .conftest import FakeReplica, ask, expected, policy, pool_of, until


async def test_requests_are_spread_and_no_replica_gets_more_than_its_slots() -> None:
    first, second = FakeReplica("a", slots=2), FakeReplica("b", slots=3)
    async with pool_of(first, second) as pool:
        requests = [ask(f"s{i}", max_tokens=5, prompt=(i,)) for i in range(40)]
        results = await asyncio.gather(*map(pool.generate, requests))
        assert [result.token_ids for result in results] == [expected(request) for request in requests]
        assert (first.most_running, second.most_running) == (2, 3)
        assert pool.metrics()["waiting"] == 0


async def test_a_session_goes_back_to_its_replica() -> None:
    replicas = [FakeReplica(name, slots=4) for name in "abc"]
    async with pool_of(*replicas) as pool:
        for _ in range(4):
            await asyncio.gather(*(pool.generate(ask(f"s{i}")) for i in range(9)))
        for i in range(9):
            served = [sum(request.session == f"s{i}" for request in replica.served) for replica in replicas]
            assert sorted(served) == [0, 0, 4]


async def test_an_engine_without_a_model_or_after_its_end_says_so() -> None:
    pool = Engines([FakeReplica("a")], print)
    async with pool:
        with pytest.raises(EngineError, match="no model yet; call load_model first"):
            await pool.generate(ask())
        await pool.load_model(None, byte_tokenizer())
        await pool.generate(ask())
    with pytest.raises(EngineError, match="The pool of engines is closed"):
        await pool.generate(ask())
    await pool.close()


async def test_a_cancelled_request_frees_its_slot_or_its_turn() -> None:
    replica = FakeReplica("a", slots=1)
    async with pool_of(replica) as pool:
        for after_s in (0.0, 0.0005, 0.005):
            await asyncio.gather(*(cancelled(pool.generate(ask(max_tokens=500)), after_s) for _ in range(12)))
        assert (await asyncio.wait_for(pool.generate(ask()), 10)).token_ids == expected(ask())
        assert pool.metrics()["waiting"] == 0


async def sample_until_it_ends(replica: FakeReplica, position: int) -> None:
    """Sample nothing before the replica ends."""
    await until(lambda: not replica.alive)


async def test_close_ends_all_requests() -> None:
    replicas = FakeReplica("a"), FakeReplica("b")
    async with pool_of(*replicas) as pool:
        for replica in replicas:
            replica.before_token = sample_until_it_ends
        requests = [asyncio.ensure_future(pool.generate(ask())) for _ in range(12)]
        await until(lambda: all(replica.running == 2 for replica in replicas))
        await pool.close()
        results = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 10)
        assert {str(result) for result in results} == {"The pool of engines is closed."}


async def test_requests_wait_while_the_pool_is_paused_or_asleep() -> None:
    replica = FakeReplica("a")
    async with pool_of(replica) as pool:
        for stop, go_on, stopped in (
            (pool.pause, pool.resume, lambda: replica.paused),
            (pool.sleep, pool.wake, lambda: replica.sleeping),
        ):
            await stop()
            await stop()
            assert stopped()
            waiting = asyncio.ensure_future(pool.generate(ask()))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            assert not replica.running
            await go_on()
            assert not stopped()
            assert (await asyncio.wait_for(waiting, 10)).token_ids == expected(ask())


async def test_a_replica_that_dies_asleep_is_started_again_after_the_pool_woke() -> None:
    replica = FakeReplica("a")
    async with pool_of(replica) as pool:
        await pool.sleep()
        replica.kill()
        await asyncio.sleep(0.1)
        assert replica.starts == 1
        await pool.wake()
        await until(lambda: replica.starts == 2)
        await asyncio.wait_for(pool.generate(ask()), 10)


async def test_a_replica_that_was_given_up_gets_no_model_and_can_leave() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second) as pool:
        first.failing_starts = 99
        first.kill()
        await until(lambda: first.closes == 1)
        before = first.interruptions
        await pool.load_model(None, byte_tokenizer())
        assert (first.starts, second.starts) == (4, 2)
        assert await pool.leave("a") is first
        assert first.interruptions == before
        await pool.generate(ask())


async def test_replicas_that_keep_their_memory_asleep_cannot_lend_it() -> None:
    class Keeping(FakeReplica):
        frees_memory = False

    pool = Engines([Keeping("a"), FakeReplica("b")], print)
    assert pool.objection_to_lending(1) == ""
    assert pool.objection_to_lending(2).startswith("rl.multiplex is 2, but a cannot give a GPU's memory back")


async def test_its_context_and_transports_are_those_of_all_replicas() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    first.max_context, first.transports, second.transports = 500, ("ipc", "nccl", "folder"), ("folder", "nccl")
    async with pool_of(first, second) as pool:
        assert (pool.max_context, pool.transports) == (500, ("nccl", "folder"))
        with pytest.raises(EngineError, match="take weights by nccl or folder; policy version 3 comes by 'memory'"):
            await pool.load_weights(PolicyVersion(3, MemoryTicket({})))


async def test_metrics_are_by_replica_and_in_sum() -> None:
    first, second = FakeReplica("a", slots=1), FakeReplica("b", slots=3)
    async with pool_of(first, second) as pool:
        await pool.generate(ask(max_tokens=6))
        metrics = pool.metrics()
        assert (metrics["sampled_tokens"], metrics["a/sampled_tokens"], metrics["b/sampled_tokens"]) == (6, 6, 0)
        assert metrics["slot_use"] == 0.25, "one of four slots"
        assert metrics["server_cache_use"] == pytest.approx(0.2), "a share is no sum"
        assert (metrics["replicas"], metrics["replicas_serving"], metrics["restarts"]) == (2, 2, 0)


async def test_a_replica_that_is_given_up_has_no_use_of_a_cache_and_its_counters_stay() -> None:
    notes: list[str] = []
    first, second = FakeReplica("a", slots=1), FakeReplica("b", slots=1)
    async with pool_of(first, second, notes=notes) as pool:
        await asyncio.gather(*(pool.generate(ask(f"s{i}", max_tokens=6)) for i in range(2)))
        before = pool.metrics()
        assert (before["a/server_cache_use"], before["server_cache_use"], before["sampled_tokens"]) == (0.8, 0.8, 12)
        first.failing_starts = 99
        first.kill()
        await until(lambda: any("given up" in note for note in notes))
        after = pool.metrics()
        assert "a/server_cache_use" not in after
        assert (after["server_cache_use"], after["sampled_tokens"], after["a/sampled_tokens"]) == (0.8, 12, 6)


async def test_weights_whose_folder_vanished_because_there_are_newer_ones_are_no_reason_for_a_restart() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    loading, published = asyncio.Event(), asyncio.Event()

    async def fail_once_newer_are_published(replica: FakeReplica, policy: PolicyVersion) -> None:
        if policy.version == 1 and replica.starts == 2:
            loading.set()
            await published.wait()
            raise EngineError("There is no folder 1.")

    first.before_load = fail_once_newer_are_published
    async with pool_of(first, second) as pool:
        await pool.load_weights(policy(1))
        first.kill()
        await asyncio.wait_for(loading.wait(), 10)
        await asyncio.wait_for(pool.load_weights(policy(2)), 10)
        published.set()
        await until(lambda: pool.metrics()["replicas_serving"] == 2)
        assert (first.version, first.starts) == (2, 2)


async def test_a_replica_joins_with_the_current_weights() -> None:
    async with pool_of(FakeReplica("a", slots=1)) as pool:
        await pool.load_weights(policy(4))
        joining = FakeReplica("b", slots=1)
        await pool.join(joining)
        assert (joining.version, pool.version, [replica.name for replica in pool.replicas]) == (4, 4, ["a", "b"])
        await asyncio.gather(*(pool.generate(ask(f"s{i}")) for i in range(4)))
        assert joining.served
    assert joining.closes == 1


async def test_the_generations_of_a_replica_that_leaves_go_on_elsewhere() -> None:
    replicas = [FakeReplica(name, slots=4) for name in "ab"]

    async def wait_at_20(replica: FakeReplica, position: int) -> None:
        if position == 20 and replica is replicas[0]:
            await until(lambda: replica.interruptions == 1)

    replicas[0].before_token = wait_at_20
    async with pool_of(*replicas) as pool:
        requests = [ask(f"s{i}", max_tokens=40, prompt=(i,)) for i in range(6)]
        running = [asyncio.ensure_future(pool.generate(request)) for request in requests]
        await until(lambda: replicas[0].sampled == 60)
        left = await pool.leave("a")
        assert left is replicas[0]
        assert not left.running
        assert [result.token_ids for result in await asyncio.gather(*running)] == [expected(r) for r in requests]
        assert pool.metrics()["interruptions"] == 3
        assert left.closes == 0
        with pytest.raises(EngineError, match="b is the last replica of the pool"):
            await pool.leave("b")
        with pytest.raises(EngineError, match="no replica 'a'"):
            await pool.leave("a")
        await pool.join(left)
        assert len(pool.replicas) == 2
