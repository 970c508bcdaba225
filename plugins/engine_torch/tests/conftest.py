"""What the engine's tests share: tiny models with random weights, an engine on each, and the truth from
transformers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, Generation, Sampling
from ale_engine_torch import TorchEngine
from ale_engine_torch.scheduler import Scheduler

VOCAB = 80
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
STRETCHED: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAST: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2-untied": Qwen2Config(**SMALL, num_key_value_heads=1, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True),
    "llama": LlamaConfig(**SMALL, num_key_value_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    "llama3": LlamaConfig(**SMALL, num_key_value_heads=2, rope_parameters=STRETCHED),
}
SLOW: dict[str, PretrainedConfig] = {
    "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "mistral": MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=24),
}


def write_model(name: str, path: Path) -> Path:
    """A model of that shape with weights large enough that mistakes show."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config((FAST | SLOW)[name])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the model with a name of `FAST` or `SLOW`."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = write_model(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture
def folder(folder_of: Callable[[str], Path]) -> Path:
    """The model of tests that need just one."""
    return folder_of("qwen2")


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[TorchEngine]:
    """An engine of six slots on it."""
    async with TorchEngine(TorchEngine.Config(max_batch=6, threads=1), DriverContext(seed=1)) as e:
        await e.load_model(folder, byte_tokenizer())
        yield e


@pytest.fixture
async def in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines decode a token for each round of the event loop. So a generation still runs when a test does
    something meanwhile, however long the test's thread gets no time."""
    loop, decode = asyncio.get_running_loop(), Scheduler._decode

    def decode_in_step(scheduler: Scheduler) -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        decode(scheduler)

    monkeypatch.setattr(Scheduler, "_decode", decode_in_step)


@cache
def truth(folder: Path) -> Any:
    """The model in a folder, as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(folder)  # in evaluation mode


def surprise(folder: Path, prompt: list[int], generation: Generation) -> float:
    """Largest difference between recorded log-probabilities and those of a full forward pass."""
    with torch.no_grad():
        logprobs = torch.log_softmax(truth(folder)(torch.tensor([[*prompt, *generation.token_ids]])).logits[0], -1)
    wanted = logprobs[len(prompt) - 1 : -1].gather(-1, torch.tensor(generation.token_ids)[:, None])[:, 0]
    return float((wanted - torch.tensor(generation.logprobs)).abs().max())


def request(prompt: list[int], seed: int = 0, session: str = "", **sampling: object) -> GenerateRequest:
    """A request of twelve tokens, unless `sampling` says otherwise."""
    values: dict[str, object] = {"max_tokens": 12, "seed": seed, **sampling}
    return GenerateRequest(tuple(prompt), Sampling(**values), session)  # type: ignore[arg-type]
