"""Replicas die and come back; no generation is lost, and none is sampled by older weights than it began with."""

from __future__ import annotations

import asyncio

import pytest

from ale.errors import EngineError
from ale.specs.engine import PolicyVersion

from .conftest import FakeReplica, ask, expected, next_token, policy, pool_of, until


async def test_a_generation_goes_on_elsewhere_when_its_replica_dies() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")

    async def die_at_five(replica: FakeReplica, position: int) -> None:
        if position == 5:
            replica.kill()

    first.before_token = die_at_five
    async with pool_of(first, second) as pool:
        request = ask("s", max_tokens=12, seed=9)
        result = await pool.generate(request)
        assert result.token_ids == expected(request)
        assert result.logprobs == tuple(-1.0 - t for t in result.token_ids)
        assert (result.versions, result.finish_reason) == ((0,) * 12, "length")
        (rest,) = second.served
        assert rest.token_ids == request.token_ids + result.token_ids[:5]
        assert (rest.session, rest.sampling.max_tokens) == ("s", 7)
        assert rest.sampling.seed not in (9, None)
        assert (first.sampled, second.sampled) == (5, 7), "nothing is sampled twice"


async def test_a_replica_that_died_serves_again_only_with_the_current_weights() -> None:
    notes: list[str] = []
    replicas = FakeReplica("a"), FakeReplica("b")
    async with pool_of(*replicas, notes=notes) as pool:
        await pool.load_weights(policy(7))
        loading, loaded = asyncio.Event(), asyncio.Event()

        async def wait(replica: FakeReplica, policy: PolicyVersion) -> None:
            loading.set()
            await loaded.wait()

        replicas[0].before_load = wait
        replicas[0].kill()
        await asyncio.wait_for(loading.wait(), 10)
        served = len(replicas[0].served)
        results = await asyncio.gather(*(pool.generate(ask(f"s{i}")) for i in range(8)))
        assert {version for result in results for version in result.versions} == {pool.version} == {7}
        assert len(replicas[0].served) == served, "it runs, with version 0"
        loaded.set()
        await until(lambda: pool.metrics()["replicas_serving"] == 2)
        assert (replicas[0].version, pool.metrics()["restarts"]) == (7, 1)
        assert notes == ["a is started again: a is dead.", "a serves again, with version 7."]


async def test_weights_that_come_while_a_replica_starts_are_loaded_before_it_serves() -> None:
    replicas = FakeReplica("a"), FakeReplica("b")
    async with pool_of(*replicas) as pool:
        await pool.load_weights(policy(1))
        loading, loaded = asyncio.Event(), asyncio.Event()

        async def wait(replica: FakeReplica, policy: PolicyVersion) -> None:
            if policy.version == 1:
                loading.set()
                await loaded.wait()

        replicas[0].before_load = wait
        replicas[0].kill()
        await asyncio.wait_for(loading.wait(), 10)
        await asyncio.wait_for(pool.load_weights(policy(2)), 10)
        loaded.set()
        await until(lambda: pool.metrics()["replicas_serving"] == 2)
        assert [replica.version for replica in replicas] == [2, 2]


async def test_the_only_replica_dies_and_its_requests_wait_for_it() -> None:
    replica = FakeReplica("a")

    async def die_once(replica: FakeReplica, position: int) -> None:
        if position == 20 and replica.starts == 1:
            replica.kill()

    replica.before_token = die_once
    async with pool_of(replica) as pool:
        await pool.load_weights(policy(3))
        request = ask(max_tokens=200)
        result = await asyncio.wait_for(pool.generate(request), 10)
        assert (result.token_ids, set(result.versions)) == (expected(request, version=3), {3})
        assert replica.starts == 2


async def test_a_replica_that_does_not_start_is_given_up_and_the_last_one_fails_all() -> None:
    notes: list[str] = []
    replicas = FakeReplica("a"), FakeReplica("b")

    async def die(replica: FakeReplica, position: int) -> None:
        replica.kill()

    async with pool_of(*replicas, notes=notes) as pool:
        for replica in replicas:
            replica.failing_starts = 99
        replicas[0].kill()
        await until(lambda: any("given up" in note for note in notes))
        assert (replicas[0].starts, replicas[0].closes, replicas[1].closes) == (4, 1, 0), "it keeps no memory"
        request = ask(max_tokens=50)
        assert (await pool.generate(request)).token_ids == expected(request)
        replicas[1].before_token = die
        sentence = "No replica of the engine is left. b was started 3 times in a row in vain: b does not start"
        with pytest.raises(EngineError, match=sentence):
            await asyncio.wait_for(pool.generate(ask()), 10)
        for call in (pool.generate(ask()), pool.load_weights(policy(1))):
            with pytest.raises(EngineError, match=sentence):
                await asyncio.wait_for(call, 10)


async def test_a_request_that_ends_every_replica_fails() -> None:
    replicas = [FakeReplica(name) for name in "abcdef"]

    async def die_of_it(replica: FakeReplica, position: int) -> None:
        replica.kill()

    for replica in replicas:
        replica.before_token = die_of_it
    async with pool_of(*replicas) as pool:
        with pytest.raises(EngineError, match=r"broken off 4 times, the last time: [a-f] broke"):
            await asyncio.wait_for(pool.generate(ask()), 10)


async def test_a_replica_that_aborts_but_lives_is_not_started_again() -> None:
    replica = FakeReplica("a")

    async def abort_once(replica: FakeReplica, position: int) -> None:
        if position == 5 and not replica.interruptions:
            await replica.interrupt()

    replica.before_token = abort_once
    async with pool_of(replica) as pool:
        request = ask(max_tokens=60)
        assert (await asyncio.wait_for(pool.generate(request), 10)).token_ids == expected(request)
        assert (replica.starts, pool.metrics()["interruptions"]) == (1, 1)


async def test_an_error_of_the_request_is_the_callers_own() -> None:
    replica = FakeReplica("a")

    async def refuse(replica: FakeReplica, position: int) -> None:
        raise EngineError("The prompt is too long.")

    replica.before_token = refuse
    async with pool_of(replica) as pool:
        with pytest.raises(EngineError, match="too long"):
            await pool.generate(ask())
        replica.before_token = None
        await pool.generate(ask())
        assert replica.starts == 1


async def test_weights_go_to_one_replica_after_another_while_the_others_sample() -> None:
    replicas = [FakeReplica(name) for name in "abc"]
    at_once: list[int] = []
    loading: set[str] = set()
    updated = asyncio.Event()

    async def count(replica: FakeReplica, policy: PolicyVersion) -> None:
        loading.add(replica.name)
        at_once.append(len(loading))
        others = [other for other in replicas if other is not replica]
        before = sum(other.sampled for other in others)
        if policy.version == 1:
            await until(lambda: sum(other.sampled for other in others) > before)
        else:
            await asyncio.sleep(0)
        loading.discard(replica.name)

    async def sample_until_updated(replica: FakeReplica, position: int) -> None:
        if position > 300:
            await updated.wait()
        await asyncio.sleep(0.0005)

    for replica in replicas:
        replica.before_load, replica.before_token = count, sample_until_updated
    async with pool_of(*replicas) as pool:
        running = [asyncio.ensure_future(pool.generate(ask(f"s{i}", max_tokens=302))) for i in range(6)]
        await until(lambda: all(replica.sampled > 10 for replica in replicas))
        await asyncio.wait_for(pool.load_weights(policy(1)), 20)
        updated.set()
        assert at_once == [1, 1, 1]
        for result in await asyncio.gather(*running):
            assert list(result.versions) == sorted(result.versions)
            assert set(result.versions) == {0, 1}
        at_once.clear()
        await pool.load_weights(policy(2))
        assert at_once == [1, 2, 3], "nothing is sampled, so all load at once"


async def test_a_generation_with_new_tokens_does_not_go_on_with_old_weights() -> None:
    first, second = FakeReplica("a", slots=4), FakeReplica("b", slots=4)
    sampling, second_may_load = asyncio.Event(), asyncio.Event()

    async def die_after_the_update(replica: FakeReplica, position: int) -> None:
        if position == 5:
            sampling.set()
            await until(lambda: replica.version == 1)
        if position == 10:
            replica.failing_starts = 99
            replica.kill()

    async def wait(replica: FakeReplica, policy: PolicyVersion) -> None:
        await second_may_load.wait()

    first.before_token, second.before_load = die_after_the_update, wait
    async with pool_of(first, second) as pool:
        request = ask("s", max_tokens=20)
        running = asyncio.ensure_future(pool.generate(request))
        await sampling.wait()
        update = asyncio.ensure_future(pool.load_weights(policy(1)))
        await until(lambda: not first.alive)
        await asyncio.sleep(0.05)
        assert not second.served, "it has version 0, and the generation has tokens of version 1"
        second_may_load.set()
        await asyncio.wait_for(update, 10)
        result = await asyncio.wait_for(running, 10)
        assert result.versions == (0,) * 5 + (1,) * 15
        contexts = [request.token_ids + result.token_ids[:i] for i in range(20)]
        assert result.token_ids == tuple(map(next_token, contexts, result.versions))
        assert len(second.served) == 1


async def test_weights_that_all_refuse_change_nothing() -> None:
    replicas = FakeReplica("a"), FakeReplica("b")

    async def refuse(replica: FakeReplica, policy: PolicyVersion) -> None:
        if policy.version == 9:
            raise EngineError(f"{replica.name}: there are no weights in that folder.")

    for replica in replicas:
        replica.before_load = refuse
    async with pool_of(*replicas) as pool:
        await pool.load_weights(policy(1))
        with pytest.raises(EngineError, match="a: there are no weights in that folder"):
            await pool.load_weights(policy(9))
        assert (pool.version, [replica.starts for replica in replicas]) == (1, [1, 1])
        assert set((await pool.generate(ask())).versions) == {1}


async def test_one_replica_that_refuses_the_weights_that_others_took_is_started_again() -> None:
    replicas = FakeReplica("a"), FakeReplica("b")

    async def refuse(replica: FakeReplica, policy: PolicyVersion) -> None:
        if replica.starts == 1:
            raise EngineError("It is stuck.")

    replicas[0].before_load = refuse
    async with pool_of(*replicas) as pool:
        await pool.load_weights(policy(1))
        assert pool.version == 1
        await until(lambda: pool.metrics()["replicas_serving"] == 2)
        assert [replica.starts for replica in replicas] == [2, 1]
        assert [replica.version for replica in replicas] == [1, 1]


@pytest.mark.parametrize("always", [False, True])
async def test_a_replica_that_dies_of_new_weights_gets_them_once_more(always: bool) -> None:
    replica = FakeReplica("a")

    async def die(replica: FakeReplica, policy: PolicyVersion) -> None:
        if policy.version == 2 and (always or replica.starts == 1):
            replica.kill()

    replica.before_load = die
    async with pool_of(replica) as pool:
        await pool.load_weights(policy(1))
        if always:
            with pytest.raises(EngineError, match="a is dead"):
                await asyncio.wait_for(pool.load_weights(policy(2)), 10)
        else:
            await asyncio.wait_for(pool.load_weights(policy(2)), 10)
        result = await asyncio.wait_for(pool.generate(ask()), 10)
        assert set(result.versions) == {1 if always else 2}


async def test_a_cancelled_update_still_reaches_all_replicas() -> None:
    replicas = FakeReplica("a"), FakeReplica("b")
    go_on = asyncio.Event()

    async def wait(replica: FakeReplica, policy: PolicyVersion) -> None:
        if replica.name == "b":
            await go_on.wait()

    for replica in replicas:
        replica.before_load = wait
    async with pool_of(*replicas) as pool:
        update = asyncio.ensure_future(pool.load_weights(policy(1)))
        await until(lambda: replicas[0].version == 1)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        go_on.set()
        await until(lambda: pool.version == 1 and replicas[1].version == 1)


async def test_close_ends_an_update_under_way() -> None:
    replica = FakeReplica("a")

    async def hang(replica: FakeReplica, policy: PolicyVersion) -> None:
        await asyncio.Event().wait()

    replica.before_load = hang
    async with pool_of(replica) as pool:
        update = asyncio.create_task(pool.load_weights(policy(1)))
        await asyncio.sleep(0.01)
        await pool.close()
        with pytest.raises(EngineError, match="closed while it loaded"):
            await asyncio.wait_for(update, 10)


async def test_a_replica_that_answers_checks_but_finishes_nothing_is_started_again() -> None:
    replica, sane = FakeReplica("a", slots=1), FakeReplica("b", slots=1)

    async def abort(replica: FakeReplica, position: int) -> None:
        if replica.starts == 1:
            await replica.interrupt()

    replica.before_token = abort
    async with pool_of(replica, sane) as pool:
        for number in range(8):
            request = ask(f"s{number}", prompt=(number,))
            result, _ = await asyncio.gather(pool.generate(request), pool.generate(ask(f"t{number}")))
            assert result.token_ids == expected(request)
        await until(lambda: replica.starts == 2 and pool.metrics()["replicas_serving"] == 2)


async def test_an_unexpected_error_of_a_replica_does_not_end_its_care() -> None:
    notes: list[str] = []
    replicas = FakeReplica("a"), FakeReplica("b")

    async def fail_once(replica: FakeReplica, policy: PolicyVersion) -> None:
        if replica.starts == 2:
            raise OSError(28, "No space left on device")

    replicas[0].before_load = fail_once
    async with pool_of(*replicas, notes=notes) as pool:
        await pool.load_weights(policy(1))
        replicas[0].kill()
        await until(lambda: replicas[0].starts == 3 and pool.metrics()["replicas_serving"] == 2)
        assert replicas[0].version == 1
