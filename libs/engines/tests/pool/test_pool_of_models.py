"""The pool with real models: nothing that happens to a replica changes what greedy sampling yields, and every token's
log-probability is that of the weights that its version names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, PolicyVersion, Sampling, Tokenizer
from ale_engine_torch import TorchEngine
from ale_engines.pool.continuation import NOTHING, finish_if_complete, join_parts, request_rest
from ale_engines.pool.engines import Engines
from ale_engines.pool.replica import Interrupted, Replica
from ale_testing.tiny_model import write_tiny_model

from .conftest import until


class TorchReplica(Replica):
    """ALE's own engine as a replica: it samples token by token, so that it has partial results."""

    transports = ("folder",)

    def __init__(self, name: str, slots: int = 4) -> None:
        self._name, self._slots = name, slots
        self.engine = TorchEngine(TorchEngine.Config(max_batch=slots, threads=1), DriverContext(seed=1))
        self.model: tuple[Path | None, Tokenizer] = (None, byte_tokenizer())
        self.alive = False
        self.interruptions = self.starts = 0
        self.after_token: Callable[[int], None] = lambda position: None
        self.may_finish = asyncio.Event()
        """As long as it is not set, no generation has more than 60 tokens."""
        self.may_finish.set()

    @property
    def name(self) -> str:
        return self._name

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def max_context(self) -> int:
        return self.engine.max_context

    @property
    def version(self) -> int:
        return self.engine.version

    def kill(self) -> None:
        self.alive = False

    async def start(self) -> None:
        await self.engine.start()

    async def close(self) -> None:
        await self.engine.close()

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        self.model = folder, tokenizer
        await self.restart()

    async def restart(self) -> None:
        await self.engine.load_model(*self.model)
        self.alive = True
        self.starts += 1

    async def check(self) -> None:
        if not self.alive:
            raise EngineError(f"{self.name} is dead.")

    async def interrupt(self) -> None:
        self.interruptions += 1

    async def load_weights(self, policy: PolicyVersion) -> None:
        await self.check()
        await self.engine.load_weights(policy)

    async def pause(self) -> None:
        await self.engine.pause()

    async def resume(self) -> None:
        await self.engine.resume()

    async def generate(self, request: GenerateRequest) -> Generation:
        done, interruptions = NOTHING, self.interruptions
        while True:
            rest = request_rest(request, done)
            done = join_parts(
                done, await self.engine.generate(replace(rest, sampling=replace(rest.sampling, max_tokens=1)))
            )
            self.after_token(len(done.token_ids))
            if len(done.token_ids) >= 60:
                await self.may_finish.wait()
            if (complete := finish_if_complete(request, done, self.max_context)) is not None:
                return complete
            if not self.alive or interruptions != self.interruptions:
                raise Interrupted(f"{self.name} broke it off.", done)

    def metrics(self) -> dict[str, float]:
        return self.engine.metrics()


def ask(number: int, max_tokens: int = 24, **sampling: object) -> GenerateRequest:
    """A request of a session of its own."""
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": max_tokens, **sampling}
    return GenerateRequest((5 + number, 11, 17), Sampling(**values), session=f"s{number}")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of one shape."""
    root = tmp_path_factory.mktemp("models")
    for seed in range(2):
        write_tiny_model(root / str(seed), seed)
    return [root / "0", root / "1"]


async def truth(folder: Path, requests: list[GenerateRequest]) -> list[Generation]:
    """What one engine gives."""
    async with TorchEngine(TorchEngine.Config(max_batch=4, threads=1), DriverContext(seed=1)) as engine:
        await engine.load_model(folder, byte_tokenizer())
        return [await engine.generate(request) for request in requests]


async def logprobs_of(folder: Path, request: GenerateRequest, tokens: tuple[int, ...]) -> list[float]:
    """The log-probability of each token after those before it, by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([[*request.token_ids, *tokens]])).logits[0].float()
    start = len(request.token_ids) - 1
    chosen = torch.log_softmax(logits, -1)[start:-1].gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    return [float(value) for value in chosen]


async def test_a_death_in_the_middle_changes_no_token(folders: list[Path]) -> None:
    replicas = [TorchReplica(name) for name in "ab"]

    def die(position: int) -> None:
        if position == 10 and replicas[0].starts == 1:
            replicas[0].kill()

    replicas[0].after_token = die
    async with Engines(replicas, print) as pool:
        await pool.load_model(folders[0], byte_tokenizer())
        requests = [ask(number) for number in range(10)]
        results = await asyncio.gather(*map(pool.generate, requests))
        assert pool.metrics()["interruptions"] >= 1
        for result, wanted in zip(results, await truth(folders[0], requests), strict=True):
            assert result.token_ids == wanted.token_ids
            assert result.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        await until(lambda: pool.metrics()["replicas_serving"] == 2)


async def test_sampled_tokens_have_the_logprobs_of_their_version(folders: list[Path]) -> None:
    replicas = [TorchReplica(name) for name in "ab"]
    reached = asyncio.Event()

    def notice(position: int) -> None:
        if position == 10:
            reached.set()

    replicas[1].after_token = notice
    replicas[0].may_finish.clear()  # else it may have finished all before it dies, as a load takes long on a busy disk
    async with Engines(replicas, print) as pool:
        await pool.load_model(folders[0], byte_tokenizer())
        requests = [ask(number, max_tokens=120, temperature=1.0, seed=number) for number in range(8)]
        running = [asyncio.ensure_future(pool.generate(request)) for request in requests]
        await asyncio.wait_for(reached.wait(), 30)
        await pool.load_weights(PolicyVersion(1, FolderTicket(folders[1])))
        replicas[0].kill()
        replicas[0].may_finish.set()
        results = await asyncio.wait_for(asyncio.gather(*running), 60)
        assert {version for result in results for version in result.versions} == {0, 1}
        assert pool.metrics()["interruptions"] >= 1
        assert pool.version == 1
        for result in results:
            assert list(result.versions) == sorted(result.versions)
            assert len(result.token_ids) == len(result.logprobs) == 120
        after = ask(50, temperature=1.0, seed=4)
        result = await pool.generate(after)
        assert set(result.versions) == {1}
        assert result.logprobs == pytest.approx(await logprobs_of(folders[1], after, result.token_ids), abs=1e-4)
        # The first tokens of a generation that spans both versions are those of the old weights.
        for request, spanning in zip(requests, results, strict=True):
            first = spanning.token_ids[: spanning.versions.count(0)]
            wanted = await logprobs_of(folders[0], request, first) if first else []
            assert spanning.logprobs[: len(first)] == pytest.approx(wanted, abs=1e-4)


async def test_a_replica_started_again_has_the_current_weights(folders: list[Path]) -> None:
    replica = TorchReplica("a")
    async with Engines([replica], print) as pool:
        await pool.load_model(folders[0], byte_tokenizer())
        await pool.load_weights(PolicyVersion(6, FolderTicket(folders[1])))
        replica.kill()
        await until(lambda: replica.starts == 2 and pool.metrics()["replicas_serving"] == 1)
        result = await pool.generate(ask(0))
        (wanted,) = await truth(folders[1], [ask(0)])
        assert (result.token_ids, set(result.versions)) == (wanted.token_ids, {6})
        with pytest.raises(EngineError):
            await pool.load_weights(PolicyVersion(7, FolderTicket(folders[1] / "nowhere")))
        assert (pool.version, (await pool.generate(ask(0))).token_ids) == (6, wanted.token_ids)


async def test_a_context_that_is_full_ends_the_generation_also_after_a_death(folders: list[Path]) -> None:
    replicas = [TorchReplica(name) for name in "ab"]

    def die(position: int) -> None:
        if position == 250:
            replicas[0].kill()

    replicas[0].after_token = die
    async with Engines(replicas, print) as pool:
        await pool.load_model(folders[0], byte_tokenizer())
        result = await pool.generate(ask(0, max_tokens=1000))
        (wanted,) = await truth(folders[0], [ask(0, max_tokens=1000)])
        assert (result.token_ids, result.finish_reason) == (wanted.token_ids, "length")
        assert len(result.token_ids) == pool.max_context - 3 == 253
        with pytest.raises(EngineError, match="cannot be answered in a context of 256"):
            await pool.generate(GenerateRequest((1,) * 256, Sampling()))
