"""Tests of the trainer use these shapes of models, trainers, and batches of random tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTable, Loss, LossInput, LossOutput, TrainBatch, TrainerBackend
from ale_trainer_megatron import MegatronTrainer
from ale_trainer_torch import TorchTrainer

VOCAB = 301
"""Odd: two ranks that share the vocabulary have a row more than there are tokens."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2 with windows": Qwen2Config(
        **SIZES, tie_word_embeddings=False, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, norm_topk_prob=True),
    "qwen3_moe in every other layer": Qwen3MoeConfig(
        **SIZES, **EXPERTS, head_dim=16, norm_topk_prob=False, decoder_sparse_step=2
    ),
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=SCALED),
}


@asynccontextmanager
async def megatron(folder: Path | None = None, **settings: Any) -> AsyncIterator[MegatronTrainer]:
    """Open a trainer: `async with megatron(folder, ranks=2) as t`."""
    config = MegatronTrainer.Config(**{"device": "cpu", "threads": 1, "micro_batch_tokens": 60, **settings})
    async with MegatronTrainer(config, DriverContext(seed=5)) as trainer:
        await _load(trainer, folder)
        yield trainer


@asynccontextmanager
async def plain(folder: Path | None = None, **settings: Any) -> AsyncIterator[TorchTrainer]:
    """Open the trainer `torch` with the same settings."""
    config = TorchTrainer.Config(**{"device": "cpu", "threads": 1, "micro_batch_tokens": 60, **settings})
    async with TorchTrainer(config, DriverContext(seed=5)) as trainer:
        await _load(trainer, folder)
        yield trainer


async def _load(trainer: TrainerBackend, folder: Path | None) -> None:
    if folder is not None:
        await trainer.load(folder)


class Surrogate(Loss):
    """Advantages of both signs and an entropy bonus. Ranks get it by value, since they cannot import this file."""

    entropy_gradient = True

    def __call__(self, inputs: LossInput) -> LossOutput:
        """Sum them over the tokens."""
        of_tokens = inputs.chunks.returns[inputs.chunk_ids] * inputs.logprobs + 0.1 * inputs.entropy
        loss = -of_tokens.sum() / inputs.normalizer
        return LossOutput(loss, {"n": torch.tensor(float(len(inputs.logprobs))), "entropy": inputs.entropy.sum()})


def build_batch(seed: int = 0, trajectories: int = 6) -> TrainBatch:
    """Trajectories of one or two sequences of 4 to 40 tokens, each with two chunks; some are more than 60 tokens."""
    rng = np.random.default_rng(seed)
    tokens, lengths, owners, ids = [], [], [], []
    for t in range(trajectories):
        for _ in range(int(rng.integers(1, 3))):
            n = int(rng.integers(4, 41))
            owner = np.full(n, -1, dtype=np.int64)
            owner[2:] = 2 * len(lengths)
            owner[n - 1 :] += 1
            tokens.append(rng.integers(0, VOCAB, n))
            lengths.append(n)
            owners.append(t)
            ids.append(owner)
    count = 2 * len(lengths)
    of, returns = np.repeat(owners, 2), rng.normal(size=count).astype(np.float32)
    table = ChunkTable(of, np.zeros(count, np.int64), np.ones(count, np.int64), returns, returns > 0)
    chunk_ids = np.concatenate(ids)
    engine = np.where(chunk_ids >= 0, -5.0, 0).astype(np.float32)
    trained = float((chunk_ids >= 0).sum())
    return TrainBatch(
        np.concatenate(tokens).astype(np.int64), np.array(lengths), np.array(owners), chunk_ids, engine, table, trained
    )
