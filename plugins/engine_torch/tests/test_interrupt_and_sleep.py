"""The engine gives up what it generates, or its memory, and goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ale.errors import ConfigError, EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, Generation, MemoryTicket, PolicyVersion
from ale_engine_torch import TorchEngine

from .conftest import VOCAB, request, surprise

FolderOf = Callable[[str], Path]


def prompts(count: int) -> list[list[int]]:
    """Prompts of different lengths."""
    return [[(7 * i + j * j) % VOCAB for j in range(3 + 5 * i)] for i in range(count)]


async def sample_some(engine: TorchEngine, tokens: int) -> None:
    """Wait until the engine has sampled so many tokens more."""
    before = engine.metrics()["sampled_tokens"]
    while engine.metrics()["sampled_tokens"] < before + tokens:  # noqa: ASYNC110 - a counter, not an event
        await asyncio.sleep(0.001)


def smaller_copy(folder: Path, target: Path, factor: float = 0.5) -> Path:
    """The model of a folder with smaller weights."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.load_state_dict({name: weight * factor for name, weight in model.state_dict().items()})
    model.save_pretrained(target)
    return target


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
async def test_interrupting_ends_all_requests_with_what_they_sampled(
    folder_of: FolderOf, in_step: None, name: str, paused: bool
) -> None:
    folder = folder_of(name)
    async with TorchEngine(TorchEngine.Config(max_batch=4, threads=1), DriverContext(seed=1)) as engine:
        await engine.load_model(folder, byte_tokenizer())
        assert engine.slots == 4
        calls = [
            asyncio.create_task(engine.generate(request(prompt, i, f"{i}", max_tokens=200)))
            for i, prompt in enumerate(prompts(6))
        ]
        await sample_some(engine, 40)
        if paused:
            await engine.pause()
        await engine.interrupt()
        parts = await asyncio.wait_for(asyncio.gather(*calls), 60)
        if paused:
            await engine.resume()
        assert {part.finish_reason for part in parts} == {"abort"}
        for prompt, part in zip(prompts(6), parts, strict=True):
            assert len(part.token_ids) == len(part.logprobs) == len(part.versions)
            if part.token_ids:
                assert surprise(folder, prompt, part) < 1e-4
        assert sum(len(part.token_ids) for part in parts) >= 40
        assert [len(part.token_ids) for part in parts[4:]] == [0, 0], "there are four slots"
        # What was interrupted is still in the cache: going on computes the last token alone.
        cached = engine.metrics()["cached_prompt_tokens"]
        longer = [*prompts(6)[0], *parts[0].token_ids]
        again = await engine.generate(request(longer, 3, "0"))
        assert engine.metrics()["cached_prompt_tokens"] - cached == len(longer) - 1
        assert surprise(folder, longer, again) < 1e-4
        every = await asyncio.gather(*(engine.generate(request(p, i, f"{i}")) for i, p in enumerate(prompts(6))))
        assert max(surprise(folder, p, part) for p, part in zip(prompts(6), every, strict=True)) < 1e-4


async def test_there_may_be_nothing_to_interrupt(folder: Path) -> None:
    engine = TorchEngine(TorchEngine.Config(threads=1), DriverContext())
    async with engine:
        await engine.interrupt()
        await engine.check()
        await engine.load_model(folder, byte_tokenizer())
        await engine.interrupt()
        assert (await engine.generate(request([1, 2]))).finish_reason == "length"
    for call in (engine.interrupt(), engine.check()):
        with pytest.raises(EngineError, match="closed"):
            await call


async def test_an_engine_that_sleeps_has_neither_weights_nor_cache(engine: TorchEngine, folder: Path) -> None:
    before = await engine.generate(request([1, 2, 3], temperature=0.0, session="s"))
    assert engine._scheduler is not None
    decoder: Any = engine._scheduler.decoder
    held = [weakref.ref(each) for each in (decoder, decoder._cache, decoder.weights.embedding)]
    del decoder
    await engine.sleep()
    await engine.sleep()
    assert [ref() for ref in held] == [None] * 3
    with pytest.raises(EngineError, match="is asleep; call wake first"):
        await engine.load_weights(PolicyVersion(1, FolderTicket(folder)))
    waiting = asyncio.create_task(engine.generate(request([1, 2, 3], temperature=0.0, session="s")))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await engine.wake()
    assert await asyncio.wait_for(waiting, 60) == before
    await engine.wake()
    assert (engine.version, engine.metrics()["cached_prompt_tokens"]) == (0, 0)


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
async def test_after_a_sleep_the_weights_are_those_that_are_loaded_then(
    folder_of: FolderOf, name: str, tmp_path: Path
) -> None:
    new = smaller_copy(folder_of(name), tmp_path)
    weights = AutoModelForCausalLM.from_pretrained(new).state_dict()
    async with TorchEngine(TorchEngine.Config(max_batch=2, threads=1), DriverContext(seed=1)) as engine:
        await engine.load_model(folder_of(name), byte_tokenizer())
        for version, ticket in ((3, MemoryTicket(weights)), (4, FolderTicket(new))):
            await engine.load_weights(PolicyVersion(version, ticket))
            before = await engine.generate(request([1, 2, 3], temperature=0.0))
            await engine.sleep()
            await engine.wake()
            assert engine.version == 0
            waiting = asyncio.create_task(engine.generate(request([1, 2, 3], temperature=0.0)))
            await asyncio.sleep(0.05)
            assert not waiting.done(), "the weights that it has now are older than those that it had"
            await engine.load_weights(PolicyVersion(version + 10, ticket))
            after = await asyncio.wait_for(waiting, 60)
            assert (after.token_ids, set(after.versions)) == (before.token_ids, {version + 10})
            assert after.logprobs == pytest.approx(before.logprobs, abs=1e-5)
            assert surprise(new, [1, 2, 3], after) < 1e-4


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
async def test_what_runs_when_the_engine_falls_asleep_goes_on_when_it_wakes_up(
    folder_of: FolderOf, in_step: None, name: str
) -> None:
    async with TorchEngine(TorchEngine.Config(max_batch=4, threads=1), DriverContext(seed=1)) as engine:
        await engine.load_model(folder_of(name), byte_tokenizer())

        async def generate() -> list[Generation]:
            calls = (
                engine.generate(request(prompt, i, max_tokens=60, temperature=float(i % 2)))
                for i, prompt in enumerate(prompts(6))
            )
            return await asyncio.gather(*calls)

        whole = await generate()
        running = asyncio.create_task(generate())
        for _ in range(2):
            await sample_some(engine, 40)
            await engine.sleep()
            sampled = engine.metrics()["sampled_tokens"]
            await asyncio.sleep(0.02)
            assert engine.metrics()["sampled_tokens"] == sampled
            assert not running.done()
            await engine.wake()
        for result, wanted in zip(await asyncio.wait_for(running, 60), whole, strict=True):
            assert (result.token_ids, result.finish_reason) == (wanted.token_ids, "length")
            assert result.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        metrics = engine.metrics()
        assert (metrics["requests"], metrics["sampled_tokens"]) == (12, 12 * 60)


async def test_requests_end_while_the_engine_sleeps(engine: TorchEngine, in_step: None) -> None:
    running = [asyncio.create_task(engine.generate(request([i, 2], max_tokens=250))) for i in range(3)]
    await sample_some(engine, 30)
    await engine.sleep()
    running[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await running[0]
    await engine.interrupt()
    parts = await asyncio.gather(*running[1:])
    assert [part.finish_reason for part in parts] == ["abort"] * 2
    assert all(len(part.token_ids) == len(part.logprobs) > 0 for part in parts)
    waiting = asyncio.create_task(engine.generate(request([1, 2])))
    await asyncio.sleep(0.02)
    await engine.close()
    with pytest.raises(EngineError, match="was closed"):
        await waiting


async def test_another_model_wakes_the_engine(engine: TorchEngine, folder: Path) -> None:
    before = await engine.generate(request([1, 2, 3]))
    await engine.load_weights(PolicyVersion(1, FolderTicket(folder)))
    await engine.sleep()
    await engine.load_model(folder, byte_tokenizer())
    assert (await asyncio.wait_for(engine.generate(request([1, 2, 3])), 60)) == before


async def test_an_engine_whose_model_has_vanished_stays_asleep(
    engine: TorchEngine, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = await engine.generate(request([1, 2, 3]))
    await engine.sleep()
    monkeypatch.setattr(engine, "_folder", tmp_path)
    with pytest.raises(ConfigError, match="holds no model"):
        await engine.wake()
    with pytest.raises(EngineError, match="asleep"):
        await engine.load_weights(PolicyVersion(1, FolderTicket(folder)))
    monkeypatch.setattr(engine, "_folder", folder)
    await engine.wake()
    assert await engine.generate(request([1, 2, 3])) == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
async def test_an_engine_that_sleeps_gives_the_gpus_memory_back(folder: Path) -> None:
    config = TorchEngine.Config(max_batch=64, max_context=256, device="cuda")
    async with TorchEngine(config, DriverContext()) as engine:
        await engine.load_model(folder, byte_tokenizer())
        awake = torch.cuda.memory_reserved()
        await engine.sleep()
        asleep = torch.cuda.memory_reserved()
        assert asleep < awake
        await engine.wake()
        assert torch.cuda.memory_reserved() > asleep
