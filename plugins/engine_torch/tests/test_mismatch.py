"""Settings that make the engine differ from the trainer: int8 weights, noise on the logits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ale.errors import ConfigError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import Generation, MemoryTicket, PolicyVersion
from ale_engine_torch import TorchEngine
from ale_engine_torch.sampling import normal_noise

from .conftest import VOCAB, request, surprise, truth

FolderOf = Callable[[str], Path]
PROMPT = list(range(10))


async def generate(folder: Path, prompts: list[list[int]], **settings: Any) -> list[Generation]:
    async with TorchEngine(TorchEngine.Config(max_batch=8, threads=1, **settings), DriverContext(seed=1)) as engine:
        await engine.load_model(folder, byte_tokenizer())
        return await asyncio.gather(*(engine.generate(request(p, i, f"{i}")) for i, p in enumerate(prompts)))


def rounded_copy(folder: Path, target: Path) -> Path:
    """The model of a folder with every projection rounded by a loop over its rows."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in model.named_parameters():
        if "_proj.weight" in name:
            for row in weight.data:
                step = float(row.abs().max()) / 127
                row.copy_(torch.tensor([round(float(w) / step) * step for w in row]))
    model.save_pretrained(target)
    return target


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
async def test_int8_computes_with_each_projection_rounded_by_rows(
    folder_of: FolderOf, tmp_path: Path, name: str
) -> None:
    (generation,) = await generate(folder_of(name), [PROMPT], quantization="int8")
    assert surprise(rounded_copy(folder_of(name), tmp_path), PROMPT, generation) < 1e-4
    assert surprise(folder_of(name), PROMPT, generation) > 1e-3


async def test_published_weights_are_rounded_too(folder_of: FolderOf, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder_of("qwen2"))
    model.load_state_dict({name: weight * 0.7 for name, weight in model.state_dict().items()})
    model.save_pretrained(tmp_path / "new")
    config = TorchEngine.Config(max_batch=2, threads=1, quantization="int8")
    async with TorchEngine(config, DriverContext(seed=1)) as engine:
        await engine.load_model(folder_of("qwen2"), byte_tokenizer())
        await engine.load_weights(PolicyVersion(1, MemoryTicket(model.state_dict())))
        generation = await engine.generate(request(PROMPT))
    assert surprise(rounded_copy(tmp_path / "new", tmp_path / "rounded"), PROMPT, generation) < 1e-4


async def test_a_model_that_cannot_be_quantized_is_refused(folder_of: FolderOf) -> None:
    with pytest.raises(ConfigError, match=r"engine.quantization: the model in .* cannot be quantized"):
        await generate(folder_of("gpt2"), [PROMPT], quantization="int8")


async def test_noise_is_part_of_the_recorded_log_probabilities(folder_of: FolderOf) -> None:
    folder, sigma = folder_of("llama"), 0.5
    (generation,) = await generate(folder, [PROMPT], logit_noise=sigma)
    with torch.no_grad():
        logits = truth(folder)(torch.tensor([[*PROMPT, *generation.token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    noise = normal_noise([(0, i) for i in range(len(logits))], VOCAB)
    wanted = torch.log_softmax(logits + sigma * noise, -1)
    sampled = torch.tensor(generation.token_ids)[:, None]
    torch.testing.assert_close(
        torch.tensor(generation.logprobs), wanted.gather(-1, sampled)[:, 0], atol=1e-4, rtol=1e-4
    )
    assert surprise(folder, PROMPT, generation) > 0.05


async def test_noise_depends_on_the_request_and_not_on_what_else_runs(folder_of: FolderOf) -> None:
    prompts = [[i, *PROMPT] for i in range(8)]
    together = await generate(folder_of("qwen2"), prompts, logit_noise=0.5)
    alone = [(await generate(folder_of("qwen2"), prompts[: i + 1], logit_noise=0.5))[i] for i in (0, 3)]
    assert [g.token_ids for g in alone] == [together[i].token_ids for i in (0, 3)]


def test_noise_is_standard_normal_and_new_for_every_token_and_seed() -> None:
    noise = normal_noise([(seed, number) for seed in (0, 1, -1) for number in (0, 1)], 20_000)
    assert noise.dtype == torch.float32
    assert noise.mean(1).abs().max() < 5 / math.sqrt(20_000)
    assert (noise.std(1) - 1).abs().max() < 0.03
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.05
