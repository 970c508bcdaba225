"""Whatever happens in whatever order: each answer is right token by token, and no slot and no task is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from ale.errors import EngineError
from ale.specs.engine import Generation, PolicyVersion
from ale_engines.pool.member import State

from .conftest import FakeReplica, ask, next_token, policy, pool_of, until


@pytest.mark.parametrize("seed", range(6))
async def test_no_order_of_deaths_updates_pauses_sleep_and_cancellations_breaks_the_pool(seed: int) -> None:
    draw = random.Random(seed)
    replicas = [FakeReplica(name, slots=draw.randint(1, 4)) for name in "abc"]
    deaths: set[tuple[str, int]] = set()
    loading: set[FakeReplica] = set()

    async def happen(replica: FakeReplica, position: int) -> None:
        if draw.random() < 0.1:
            await asyncio.sleep(draw.random() * 0.002)
        if draw.random() < 0.0005 and replica not in loading:
            replica.kill()
        elif draw.random() < 0.001:
            await replica.interrupt()

    async def happen_in_load(replica: FakeReplica, policy: PolicyVersion) -> None:
        loading.add(replica)
        await asyncio.sleep(draw.random() * 0.002)
        loading.discard(replica)
        death = replica.name, policy.version
        if draw.random() < 0.1 and death not in deaths:  # weights of which a replica dies twice are refused
            replica.kill()
        if not replica.alive:  # also if it had died before, and nobody had noticed
            deaths.add(death)

    for replica in replicas:
        replica.before_token, replica.before_load, replica.forgetful = happen, happen_in_load, True
    async with pool_of(*replicas) as pool:

        async def generate(number: int) -> Generation | None:
            await asyncio.sleep(draw.random() * 0.3)
            request = ask(f"s{number % 20}", max_tokens=draw.randint(1, 60), prompt=(number,))
            running = asyncio.ensure_future(pool.generate(request))
            if draw.random() < 0.2:
                await asyncio.wait([running], timeout=draw.random() * 0.01)
                running.cancel()
                await asyncio.wait([running])
                if running.cancelled():
                    return None
            try:
                result = await running
            except EngineError as error:
                if "broken off 4 times" in str(error):
                    return None
                raise
            assert len(result.token_ids) == request.sampling.max_tokens
            assert list(result.versions) == sorted(result.versions)
            contexts = [request.token_ids + result.token_ids[:i] for i in range(len(result.token_ids))]
            assert result.token_ids == tuple(map(next_token, contexts, result.versions))
            return result

        async def update() -> None:
            for version in range(1, 12):
                await pool.load_weights(policy(version))
                assert pool.version == version
                if draw.random() < 0.3:
                    await pool.pause()
                    await asyncio.sleep(0.002)
                    await pool.resume()
                await asyncio.sleep(draw.random() * 0.02)

        async def lend() -> None:
            for _ in range(6):
                names = draw.sample("abc", draw.randint(1, 3))
                await pool.shrink(names)
                await asyncio.sleep(draw.random() * 0.01)
                await pool.expand(names)

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(generate(number)) for number in range(200)]
            group.create_task(update())
            group.create_task(lend())
        assert sum(task.result() is not None for task in tasks) > 100
        for replica in replicas:
            replica.before_token = replica.before_load = None
        await until(lambda: all(member.state in (State.SERVING, State.FAILED) for member in pool._members))
        assert {member.replica.version for member in pool._members if member.serving} == {11}
        assert not any(member.active for member in pool._members)
        assert pool.metrics()["interruptions"] > 0
        assert pool.metrics()["waiting"] == 0
