"""Against transformers: what the engine says it sampled, with which probability, is what a full forward pass says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import Generation, MemoryTicket, PolicyVersion
from ale_engine_torch import TorchEngine, llama_decoder, scheduler
from ale_engine_torch.llama_decoder import LlamaDecoder
from ale_engine_torch.load_decoder import load_decoder
from ale_engine_torch.transformers_decoder import TransformersDecoder

from .conftest import FAST, SLOW, VOCAB, request, surprise, truth

FolderOf = Callable[[str], Path]


def started(slots: int) -> TorchEngine:
    return TorchEngine(TorchEngine.Config(max_batch=slots, threads=1), DriverContext(seed=1))


@pytest.mark.parametrize("name", sorted(FAST | SLOW))
def test_logits_are_those_of_transformers(folder_of: FolderOf, name: str) -> None:
    folder = folder_of(name)
    ours = load_decoder(folder, 3, 256, torch.device("cpu"), "float32")
    assert isinstance(ours, LlamaDecoder if name in FAST else TransformersDecoder)
    rows = torch.randint(0, VOCAB, (3, 90), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = truth(folder)(rows).logits
        lengths = [90 - 1, 41, 70]
        prompts = [row[:n].tolist() for row, n in zip(rows, lengths, strict=True)]
        prefilled = ours.prefill([0, 1, 2], prompts, [0, 0, 0])
        next_token = np.array([int(row[n]) for row, n in zip(rows, lengths, strict=True)])
        decoded = ours.decode(next_token, np.array(lengths))
    for i, n in enumerate(lengths):
        torch.testing.assert_close(prefilled[i], wanted[i, n - 1], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(decoded[i], wanted[i, n], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(FAST | SLOW))
async def test_many_conversations_at_once_record_what_the_model_says(folder_of: FolderOf, name: str) -> None:
    rng = random.Random(0)
    seen: list[tuple[list[int], Generation]] = []

    async def converse(engine: TorchEngine, name: int) -> None:
        history = [rng.randrange(VOCAB) for _ in range(rng.randrange(3, 40))]
        for turn in range(3):
            sampling = {"max_tokens": rng.randrange(1, 20), "stop_token_ids": (7,)}
            generation = await engine.generate(request(history, name * 10 + turn, str(name), **sampling))
            seen.append((list(history), generation))
            history += [*generation.token_ids, *(rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9)))]
            await asyncio.sleep(0)

    async with started(6) as engine:
        await engine.load_model(folder_of(name), byte_tokenizer())
        await asyncio.gather(*(converse(engine, i) for i in range(14)))  # more than there are slots
    assert len(seen) == 42
    assert max(surprise(folder_of(name), prompt, generation) for prompt, generation in seen) < 1e-4
    metrics = engine.metrics()
    assert metrics["sampled_tokens"] == sum(len(g.token_ids) for _, g in seen)
    assert 0 < metrics["slot_use"] <= 1


async def test_few_long_contexts_among_short_ones_are_attended_by_themselves(
    folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_decoder, "TAIL_ROWS", 2)
    monkeypatch.setattr(scheduler, "TAIL_ROWS", 2)
    monkeypatch.setattr(llama_decoder, "SPLIT_SAVES", 1)
    split = 0
    parts = llama_decoder._attention_parts

    def counted(positions: llama_decoder.IntArray) -> list[tuple[int, int, int]]:
        nonlocal split
        split += len(parts(positions)) - 1
        return parts(positions)

    monkeypatch.setattr(llama_decoder, "_attention_parts", counted)
    rng = random.Random(4)
    prompts = [[rng.randrange(VOCAB) for _ in range(200 if i in (0, 5) else rng.randrange(2, 30))] for i in range(12)]
    async with started(12) as engine:
        await engine.load_model(folder_of("llama"), byte_tokenizer())
        calls = [engine.generate(request(p, i, max_tokens=10 + i)) for i, p in enumerate(prompts)]
        generations = await asyncio.gather(*calls)
    assert split > 5
    assert max(surprise(folder_of("llama"), p, g) for p, g in zip(prompts, generations, strict=True)) < 1e-4


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
async def test_requests_that_begin_alike_compute_the_beginning_once(folder_of: FolderOf, name: str) -> None:
    rng = random.Random(2)
    system = [rng.randrange(VOCAB) for _ in range(40)]
    tasks = [[rng.randrange(VOCAB) for _ in range(20)] for _ in range(2)]
    prompts = [system + tasks[i // 4] for i in range(8)]
    async with started(8) as engine:
        await engine.load_model(folder_of(name), byte_tokenizer())
        await engine.pause()  # so that all arrive in one step
        calls = [asyncio.create_task(engine.generate(request(p, i, f"{i}"))) for i, p in enumerate(prompts)]
        await asyncio.sleep(0.05)
        await engine.resume()
        generations = await asyncio.gather(*calls)
        metrics = engine.metrics()
    # One prompt is computed whole, the other task once, of all others the last token.
    assert metrics["prompt_tokens"] - metrics["cached_prompt_tokens"] == 60 + 20 + 6
    assert max(surprise(folder_of(name), p, g) for p, g in zip(prompts, generations, strict=True)) < 1e-4
    assert len({g.token_ids for g in generations}) == 8


async def test_a_cache_of_older_weights_is_never_shared(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = folder_of("qwen2")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    model.save_pretrained(tmp_path)
    prompt = list(range(30))
    async with started(4) as engine:
        await engine.load_model(folder, byte_tokenizer())
        await engine.generate(request(prompt, session="idle"))
        running = asyncio.create_task(engine.generate(request(prompt, 1, "running", max_tokens=200)))
        while engine.metrics()["sampled_tokens"] < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await engine.pause()
        await engine.load_weights(PolicyVersion(1, MemoryTicket(model.state_dict())))
        fresh = asyncio.create_task(engine.generate(request(prompt, 2, "idle")))
        await engine.resume()
        assert surprise(tmp_path, prompt, await fresh) < 1e-4
        first = await running
        # What ran across the change left a cache of both weights: its next turn computes all of it anew.
        longer = [*prompt, *first.token_ids[:50], 3]
        assert surprise(tmp_path, longer, await engine.generate(request(longer, 3, "running"))) < 1e-4


async def test_more_prompt_than_a_step_prefills_is_answered_all_the_same(folder_of: FolderOf) -> None:
    prompts = [[(i * 7 + j * j) % VOCAB for j in range(150 + i)] for i in range(20)]
    async with started(20) as engine:
        await engine.load_model(folder_of("llama"), byte_tokenizer())
        calls = [engine.generate(request(p, i, f"{i}", max_tokens=4)) for i, p in enumerate(prompts)]
        generations = await asyncio.gather(*calls)
    assert max(surprise(folder_of("llama"), p, g) for p, g in zip(prompts, generations, strict=True)) < 1e-4


def test_a_folder_in_several_files_is_read_whole(folder_of: FolderOf, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder_of("qwen2-untied"))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    both = [load_decoder(f, 1, 64, torch.device("cpu"), "float32") for f in (tmp_path, folder_of("qwen2-untied"))]
    with torch.inference_mode():
        one, other = (d.prefill([0], [[1, 2, 3]], [0]) for d in both)
    assert torch.equal(one, other)
