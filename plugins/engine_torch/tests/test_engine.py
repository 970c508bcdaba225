"""The engine against transformers: what it says it sampled, with which probability, is what a full forward says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

from ale.endpoint.tokenizer import byte_tokenizer
from ale.errors import ConfigError, EngineError
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, Generation, PolicyVersion, Sampling
from ale_engine_torch import TorchEngine
from ale_engine_torch.any_model import AnyModelDecoder
from ale_engine_torch.decoder import LlamaDecoder
from ale_engine_torch.load import load_decoder
from ale_engine_torch.sampling import sample, uniform_stream

VOCAB = 80
SHAPES = {
    "qwen2": Qwen2Config(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True),
    "llama": LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, rope_theta=500.0),
    "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256),
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(SHAPES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(SHAPES[request.param])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    model.save_pretrained(path)
    return path


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[TorchEngine]:
    async with TorchEngine(TorchEngine.Config(max_batch=6, threads=1), DriverContext(seed=1)) as e:
        await e.load_model(folder, byte_tokenizer())
        yield e


def surprise(folder: Path, prompt: list[int], generation: Generation) -> float:
    """Largest difference between recorded log-probabilities and those of a full forward pass."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([[*prompt, *generation.token_ids]])).logits[0], -1)
    wanted = logprobs[len(prompt) - 1 : -1].gather(-1, torch.tensor(generation.token_ids)[:, None])[:, 0]
    return float((wanted - torch.tensor(generation.logprobs)).abs().max())


def request(prompt: list[int], seed: int = 0, session: str = "", **sampling: object) -> GenerateRequest:
    values: dict[str, object] = {"max_tokens": 12, "seed": seed, **sampling}
    return GenerateRequest(tuple(prompt), Sampling(**values), session)  # type: ignore[arg-type]


async def test_many_conversations_at_once_record_what_the_model_says(engine: TorchEngine, folder: Path) -> None:
    rng = random.Random(0)
    seen: list[tuple[list[int], Generation]] = []

    async def converse(name: int) -> None:
        history = [rng.randrange(VOCAB) for _ in range(rng.randrange(3, 40))]
        for turn in range(3):
            sampling = {"max_tokens": rng.randrange(1, 20), "stop_token_ids": (7,)}
            generation = await engine.generate(request(history, name * 10 + turn, str(name), **sampling))
            seen.append((list(history), generation))
            history += [*generation.token_ids, *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9)))]
            await asyncio.sleep(0)

    await asyncio.gather(*(converse(i) for i in range(14)))  # more than there are slots
    assert len(seen) == 42
    assert max(surprise(folder, prompt, generation) for prompt, generation in seen) < 1e-4
    metrics = engine.metrics()
    assert metrics["sampled_tokens"] == sum(len(g.token_ids) for _, g in seen)
    assert 0 < metrics["slot_use"] <= 1


async def test_a_session_computes_only_what_is_new(engine: TorchEngine) -> None:
    history = list(range(20))
    first = await engine.generate(request(history, session="s"))
    await engine.generate(request([*history, *first.token_ids, 3, 4], session="s"))
    assert engine.metrics()["cached_prompt_tokens"] == 20 + len(first.token_ids) - 1


async def test_new_weights_void_the_cache_and_mark_the_tokens(
    engine: TorchEngine, folder: Path, tmp_path: Path
) -> None:
    history = list(range(20))
    await engine.generate(request(history, session="s"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    await engine.load_weights(PolicyVersion(4, weights=model.state_dict()))
    generation = await engine.generate(request([*history, 1], session="s"))
    assert engine.version == 4
    assert set(generation.versions) == {4}
    model.save_pretrained(tmp_path / "new")
    assert surprise(tmp_path / "new", [*history, 1], generation) < 1e-4


async def test_weights_may_change_in_the_middle_of_a_generation(engine: TorchEngine, folder: Path) -> None:
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    running = asyncio.create_task(engine.generate(request([1, 2, 3], max_tokens=200)))
    while engine.metrics().get("sampled_tokens", 0) < 5:  # noqa: ASYNC110 - a counter, not an event
        await asyncio.sleep(0.001)
    await engine.load_weights(PolicyVersion(1, weights=weights))
    versions = (await running).versions
    assert set(versions) == {0, 1}
    assert list(versions) == sorted(versions)


async def test_a_seed_gives_the_same_tokens_whatever_else_runs(engine: TorchEngine) -> None:
    alone = await engine.generate(request([5, 6, 7], seed=3, session="a"))
    crowd = await asyncio.gather(
        *(engine.generate(request([5, 6, 7 + i], seed=3 + i, session=f"b{i}")) for i in range(5))
    )
    assert crowd[0].token_ids == alone.token_ids
    assert len({g.token_ids for g in crowd}) > 1


async def test_greedy_stop_tokens_and_limits(engine: TorchEngine) -> None:
    greedy = await engine.generate(request([5, 6], temperature=0.0))
    assert greedy.token_ids == (await engine.generate(request([5, 6], seed=9, temperature=0.0))).token_ids
    assert greedy.finish_reason == "length"
    stop = greedy.token_ids[2]
    cut = await engine.generate(request([5, 6], temperature=0.0, stop_token_ids=(stop,)))
    first = greedy.token_ids.index(stop)
    assert (cut.token_ids, cut.finish_reason) == (greedy.token_ids[: first + 1], "stop")
    long = await engine.generate(request([1] * 250, max_tokens=99))
    assert len(long.token_ids) == 6, "the context ends the response"


async def test_what_cannot_be_served_is_a_sentence(engine: TorchEngine) -> None:
    with pytest.raises(EngineError, match="cannot be answered in a context of 256"):
        await engine.generate(request([1] * 256))
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(request([1]))


async def test_cancelling_frees_the_place(engine: TorchEngine) -> None:
    tasks = [asyncio.create_task(engine.generate(request([i, 2], max_tokens=250, session=f"{i}"))) for i in range(6)]
    await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    answer = await asyncio.wait_for(engine.generate(request([1, 2], max_tokens=3)), timeout=20)
    assert len(answer.token_ids) == 3


async def test_pause_holds_and_resume_goes_on(engine: TorchEngine) -> None:
    await engine.pause()
    waiting = asyncio.create_task(engine.generate(request([1, 2], max_tokens=2)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await engine.resume()
    assert len((await asyncio.wait_for(waiting, 20)).token_ids) == 2


async def test_closing_fails_what_waits(folder: Path) -> None:
    engine = TorchEngine(TorchEngine.Config(max_batch=2, threads=1), DriverContext())
    await engine.start()
    await engine.load_model(folder, byte_tokenizer())
    await engine.pause()
    waiting = asyncio.create_task(engine.generate(request([1, 2])))
    await asyncio.sleep(0.05)
    await engine.close()
    with pytest.raises(EngineError, match="was closed"):
        await waiting


async def test_without_a_model_there_is_a_sentence(tmp_path: Path) -> None:
    async with TorchEngine(TorchEngine.Config(threads=1), DriverContext()) as engine:
        with pytest.raises(EngineError, match="no model yet"):
            await engine.generate(request([1]))
        with pytest.raises(ConfigError, match="holds no model"):
            await engine.load_model(tmp_path, byte_tokenizer())


def test_the_fast_decoder_is_taken_where_it_is_exact(folder: Path) -> None:
    decoder = load_decoder(folder, 2, 64, torch.device("cpu"), torch.float32)
    known = folder.name.startswith(("qwen2", "llama"))
    assert isinstance(decoder, LlamaDecoder if known else AnyModelDecoder)


def test_sampling_follows_the_distribution_and_its_cuts() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4000, 1)
    draws = uniform_stream(7, 4000)
    tokens, logprobs = sample(logits, draws, [Sampling()] * 4000)
    shares = torch.bincount(tokens, minlength=4) / 4000
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03)
    assert torch.allclose(logprobs.exp(), torch.tensor([0.5, 0.3, 0.15, 0.05])[tokens])
    assert set(sample(logits, draws, [Sampling(top_k=2)] * 4000)[0].tolist()) == {0, 1}
    assert set(sample(logits, draws, [Sampling(top_p=0.4)] * 4000)[0].tolist()) == {0}
    sharp = sample(logits, draws, [Sampling(temperature=0.1)] * 4000)[0]
    assert float((sharp == 0).float().mean()) > 0.98
    assert sample(logits[:1], [1.0 - 1e-12], [Sampling(top_k=2)])[0].item() in (0, 1), "the last edge stays inside"
