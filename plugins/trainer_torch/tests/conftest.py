"""Tiny model folders, and batches of random tokens."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTable, Loss, LossInput, LossOutput, TrainBatch
from ale_testing.function_loss import FunctionLoss
from ale_trainer_torch import TorchTrainer

VOCAB = 300
CONFIGS = {
    "qwen2": Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=None, eos_token_id=1
    ),
    # Its logits are the output layer's times 1/16.
    "cohere": CohereConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        logit_scale=0.0625,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    ),
    # Its logits are soft-capped, and so are its attention scores: those it cannot be packed with.
    "gemma2": Gemma2Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        final_logit_softcapping=2.0,
        query_pre_attn_scalar=8,
        sliding_window=4,
    ),
    # One layer of two sees the last four tokens only.
    "window": Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
    ),
}


def write_tokenizer(folder: Path) -> None:
    words = {f"t{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, eos_token="t1", pad_token="t0").save_pretrained(str(folder))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny model of the named architecture, tokenizer included."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        write_tokenizer(folder)
        torch.manual_seed(3)
        auto: Any = AutoModelForCausalLM
        auto.from_config(CONFIGS[name]).save_pretrained(str(folder))
        return folder

    return functools.cache(make)


Trainers = Callable[..., AbstractAsyncContextManager[TorchTrainer]]


@pytest.fixture
def trainer() -> Trainers:
    """Opens a trainer: `async with trainer(folder, lr=...) as t`."""

    @asynccontextmanager
    async def opened(folder: Path | None = None, **settings: Any) -> AsyncIterator[TorchTrainer]:
        config = TorchTrainer.Config(**{"device": "cpu", "threads": 1, **settings})
        async with TorchTrainer(config, DriverContext(seed=5)) as t:
            if folder is not None:
                await t.load(folder)
            yield t

    return opened


@pytest.fixture
def random_batch() -> Callable[..., TrainBatch]:
    """Makes batches: `random_batch(seed=0, trajectories=6)`."""
    return build_batch


@pytest.fixture
def likelihood_loss() -> Loss:
    """A loss that every policy can lower. Ranks get it by value, since they cannot import this file."""

    def mean_negative_likelihood(inputs: LossInput) -> LossOutput:
        loss = -inputs.logprobs.sum() / inputs.normalizer
        return LossOutput(loss, {"n": torch.tensor(float(len(inputs.logprobs))), "entropy": inputs.entropy.sum()})

    return FunctionLoss(mean_negative_likelihood)


def build_batch(seed: int = 0, trajectories: int = 6) -> TrainBatch:
    """Trajectories of one or two sequences of 4 to 40 tokens, each sequence with one or two adjacent chunks."""
    rng = np.random.default_rng(seed)
    tokens, lengths, owners, ids = [], [], [], []
    rows: list[tuple[int, int, int, float, bool]] = []
    for t in range(trajectories):
        for _ in range(int(rng.integers(1, 3))):
            n = int(rng.integers(4, 41))
            owner = np.full(n, -1, dtype=np.int64)
            middle = n - 1 - int(rng.integers(0, 2))
            for start, end in ((2, middle), (middle, n)):
                owner[start:end] = len(rows)
                rows.append((t, 0, 1, float(rng.normal()), bool(rng.integers(0, 2))))
            tokens.append(rng.integers(0, VOCAB, n))
            lengths.append(n)
            owners.append(t)
            ids.append(owner)
    table = ChunkTable(*(np.array(c) for c in zip(*rows, strict=True)))
    chunk_ids = np.concatenate(ids)
    engine = np.where(chunk_ids >= 0, rng.uniform(-7, -4, len(chunk_ids)), 0).astype(np.float32)
    return TrainBatch(
        np.concatenate(tokens).astype(np.int64),
        np.array(lengths),
        np.array(owners),
        chunk_ids,
        engine,
        table,
        float((chunk_ids >= 0).sum()),
    )
