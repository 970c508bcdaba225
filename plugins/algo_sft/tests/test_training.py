"""SFT through the trainer `torch` on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from ale.specs.driver import DriverContext
from ale.trajectory import Chunk, ChunkError, Sequence, Trajectory
from ale_sft import SFT

trainer_torch = pytest.importorskip("ale_trainer_torch")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a model of two narrow layers over 40 tokens."""
    torch.manual_seed(1)
    auto: Any = AutoModelForCausalLM
    auto.from_config(
        Qwen2Config(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            initializer_range=0.15,
        )
    ).save_pretrained(str(tmp_path))
    return tmp_path


def demonstration(i: int) -> Trajectory:
    """The good turn repeats the prompt's two tokens; the failed turn after it says 39 39."""
    a, b = int(np.random.default_rng(i).integers(1, 20)), int(np.random.default_rng(i + 99).integers(1, 20))
    chunks = (
        Chunk(0, 0, 3, 5, (), (), "stop", sampled=False),
        Chunk(1, 0, 6, 8, (), (), "stop", sampled=False, error=ChunkError("execution_failed", "exit code 1")),
    )
    sequence = Sequence((a, b, 0, a, b, 0, 39, 39), ())
    return Trajectory(f"d{i}", "copy", "train", "demonstrations", 0, f"d{i}", i, 0, (sequence,), chunks)


async def train(model: Path, steps: int = 60, **settings: Any) -> tuple[list[float], float]:
    """Losses of the steps, and the probability of the failed turns at the end."""
    sft = SFT(SFT.Config(**settings), DriverContext())
    batch = sft.batch([demonstration(i) for i in range(24)])
    failed = SFT(SFT.Config(mask_errors=False), DriverContext()).batch([demonstration(i) for i in range(24)])
    assert batch is not None
    assert failed is not None
    config = trainer_torch.TorchTrainer.Config(device="cpu", threads=1, lr=1e-2)
    async with trainer_torch.TorchTrainer(config, DriverContext(seed=1)) as trainer:
        await trainer.load(model)
        losses = [sft.loss.metrics(await trainer.update(batch, sft.loss))["loss"] for _ in range(steps)]
        logprobs = await trainer.logprobs(failed)
    return losses, float(np.exp(logprobs[failed.token_ids == 39]).mean())


async def test_the_loss_falls_to_nearly_nothing_and_failed_turns_are_not_learnt(model: Path) -> None:
    losses, failed = await train(model)
    assert losses[0] > 3
    assert losses[-1] < 0.3
    assert failed < 0.05


async def test_without_the_error_mask_failed_turns_are_learnt_too(model: Path) -> None:
    _, failed = await train(model, mask_errors=False)
    assert failed > 0.9
