"""A driver of this process as a replica: it can be interrupted, and then its generations go on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import (
    FolderTicket,
    GenerateRequest,
    Generation,
    InferenceEngine,
    PolicyVersion,
    Sampling,
    Tokenizer,
)
from ale_engine_torch import TorchEngine
from ale_engines.pool.continuation import NOTHING, join_parts, request_rest
from ale_engines.pool.driver_replica import DriverReplica
from ale_engines.pool.engines import Engines
from ale_engines.pool.replica import Interrupted
from ale_testing.async_tests import cancelled, fails_with
from ale_testing.tiny_model import write_tiny_model

from .conftest import ask, until


class PlainDriver(InferenceEngine):
    """A driver that cannot be interrupted; it answers once it may."""

    transports = ("folder", "nccl")
    max_context = 100
    version = 7

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.cancelled = 0

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """It has none."""

    async def load_weights(self, policy: PolicyVersion) -> None:
        """It has none."""

    async def generate(self, request: GenerateRequest) -> Generation:
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Generation((1,), (-1.0,), (7,), "stop")


async def partial_of(call: asyncio.Future[Generation]) -> Generation:
    """What an interrupted generation had sampled."""
    error = await fails_with(call, Interrupted, why="a generation that was interrupted")
    assert isinstance(error, Interrupted)
    return error.partial


async def test_interrupting_a_driver_that_cannot_be_interrupted_loses_what_it_sampled() -> None:
    driver = PlainDriver()
    replica = DriverReplica(driver, "a", 3)
    running = [asyncio.ensure_future(replica.generate(ask())) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert (replica.name, replica.slots, replica.requests) == ("a", 3, 2)
    assert (replica.transports, replica.max_context, replica.version) == (("folder", "nccl"), 100, 7)
    running.append(asyncio.ensure_future(replica.generate(ask())))
    await asyncio.sleep(0)
    await replica.interrupt()
    assert [await partial_of(call) for call in running] == [NOTHING] * 3
    assert (replica.requests, driver.cancelled) == (0, 2)
    driver.may_answer.set()
    assert (await replica.generate(ask())).token_ids == (1,)


async def test_a_call_that_is_cancelled_stays_cancelled() -> None:
    driver = PlainDriver()
    replica = DriverReplica(driver, "a", 3)
    assert await cancelled(replica.generate(ask()), 0.01)
    assert (driver.cancelled, replica.requests) == (1, 0)
    running = asyncio.ensure_future(replica.generate(ask()))
    await asyncio.sleep(0.01)
    running.cancel()
    await replica.interrupt()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert replica.requests == 0


async def test_a_replica_that_sleeps_leaves_requests_to_others() -> None:
    driver = PlainDriver()
    replica = DriverReplica(driver, "a", 3)
    running = asyncio.ensure_future(replica.generate(ask()))
    await asyncio.sleep(0.01)
    await replica.sleep()
    assert await partial_of(running) == NOTHING
    assert await partial_of(asyncio.ensure_future(replica.generate(ask()))) == NOTHING
    await replica.wake()
    driver.may_answer.set()
    assert (await replica.generate(ask())).token_ids == (1,)


async def test_a_driver_in_this_process_is_checked_if_it_can_be_and_not_started_again() -> None:
    plain = DriverReplica(PlainDriver(), "a", 3)
    async with plain:
        await plain.check()
        with pytest.raises(EngineError, match="a cannot be started again by itself: the process"):
            await plain.restart()
    async with DriverReplica(TorchEngine(TorchEngine.Config(threads=1), DriverContext()), "b", 3) as replica:
        await replica.check()
    with pytest.raises(EngineError, match="closed"):
        await replica.check()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of one shape."""
    root = tmp_path_factory.mktemp("models")
    for seed in range(2):
        write_tiny_model(root / str(seed), seed)
    return [root / "0", root / "1"]


def torch_replica(name: str) -> DriverReplica:
    """A replica of two slots."""
    driver = TorchEngine(TorchEngine.Config(max_batch=2, threads=1), DriverContext(seed=1))
    return DriverReplica(driver, name, driver.slots)


@asynccontextmanager
async def serving(folder: Path, name: str) -> AsyncIterator[DriverReplica]:
    """A replica with a model."""
    async with torch_replica(name) as replica:
        await replica.load_model(folder, byte_tokenizer())
        yield replica


def greedy(number: int, max_tokens: int = 200) -> GenerateRequest:
    """A request whose tokens follow from the weights."""
    return GenerateRequest((5 + number, 11, 17), Sampling(temperature=0.0, max_tokens=max_tokens), f"s{number}")


async def test_an_interrupted_generation_goes_on_elsewhere_as_if_nothing_had_happened(folders: list[Path]) -> None:
    async with serving(folders[0], "a") as first, serving(folders[0], "b") as second:
        requests = [greedy(number) for number in range(3)]  # for two slots: one waits
        whole = [await second.generate(request) for request in requests]
        running = [asyncio.ensure_future(first.generate(request)) for request in requests]
        await until(lambda: first.metrics()["sampled_tokens"] >= 20)
        assert first.requests == 3
        before = [first.sampled_so_far(request) for request in requests]
        later = first.sampled_so_far(requests[0], after=len(before[0].token_ids))
        await first.interrupt()
        partials = [await partial_of(call) for call in running]
        assert len(before[0].token_ids) > 0
        before.append(join_parts(before[0], later))
        assert [first.sampled_so_far(request) for request in requests] == [NOTHING] * 3
        for known, partial in zip(before, [*partials, partials[0]], strict=True):
            parts = (known.token_ids, known.logprobs, known.versions)
            assert [len(part) for part in parts] == [len(known.token_ids)] * 3
            assert known.token_ids == partial.token_ids[: len(known.token_ids)]
        assert sum(len(partial.token_ids) for partial in partials) >= 20
        assert partials[2].token_ids == ()
        for request, partial, wanted in zip(requests, partials, whole, strict=True):
            assert partial.finish_reason == "length"
            joined = join_parts(partial, await second.generate(request_rest(request, partial)))
            assert (joined.token_ids, joined.versions) == (wanted.token_ids, wanted.versions)
            assert joined.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
            again = await first.generate(request_rest(request, partial))
            assert join_parts(partial, again).token_ids == wanted.token_ids
        assert first.requests == 0


async def test_replicas_of_a_pool_lend_their_memory(folders: list[Path]) -> None:
    requests = [greedy(number) for number in range(6)]
    whole = []
    for folder in folders:
        async with serving(folder, "c") as alone:
            whole.append([await alone.generate(request) for request in requests])
    replicas = [torch_replica(name) for name in "ab"]
    async with Engines(replicas, print) as pool:
        await pool.load_model(folders[0], byte_tokenizer())
        for version, names in ((0, ["a"]), (1, ["a", "b"]), (2, ["b"])):
            sampled = pool.metrics()["sampled_tokens"]
            running = [asyncio.ensure_future(pool.generate(request)) for request in requests]
            await until(lambda sampled=sampled: pool.metrics()["sampled_tokens"] >= sampled + 20)
            await pool.shrink(names)
            assert pool.metrics()["replicas_asleep"] == len(names)
            if len(names) == 1:
                results = await asyncio.wait_for(asyncio.gather(*running), 60)
            await pool.load_weights(PolicyVersion(version + 1, FolderTicket(folders[(version + 1) % 2])))
            await pool.expand(names)
            if len(names) == 2:
                results = await asyncio.wait_for(asyncio.gather(*running), 60)
                assert {token for result in results for token in result.versions} == {version, version + 1}
            else:
                for result, wanted in zip(results, whole[version % 2], strict=True):
                    assert result.token_ids == wanted.token_ids
                    assert result.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
                    assert set(result.versions) == {version}
            assert [replica.version for replica in replicas] == [version + 1] * 2
        assert pool.metrics()["restarts"] == 0
        assert pool.metrics()["interruptions"] > 0
