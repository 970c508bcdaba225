"""Tests of losses use these samples: rollouts made by hand or at random, a micro-batch, a small model.

torch and transformers are imported by the functions that need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ale.messages import Message
from ale.specs.trainer import ChunkTensors, LossInput, TrainBatch
from ale.trajectory import Chunk, Score, Trajectory
from ale.trajectory import Sequence as Context

TOKENS = 40
"""Vocabulary of the small model."""


def rollout(
    name: str,
    reward: float | None,
    rows: Sequence[Sequence[int]] = ((1,),),
    engine: Sequence[float] | None = None,
    **changes: Any,
) -> Trajectory:
    """For each row a sequence: two prompt tokens, then chunks of these lengths, a token of the environment behind each.

    `engine` are the log-probabilities of all sampled tokens in order; without them all are -1. `changes` are fields of
    the trajectory."""
    given = iter(engine if engine is not None else [-1.0] * sum(map(sum, rows)))
    contexts: list[Context] = []
    chunks: list[Chunk] = []
    for s, lengths in enumerate(rows):
        tokens = [0, 0]
        for n in lengths:
            at = len(tokens)
            chunks.append(Chunk(len(chunks), s, at, at + n, tuple(next(given) for _ in range(n)), (0,) * n, "stop"))
            tokens += [5] * n + [9]
        contexts.append(Context(tuple(tokens), (Message("user", "x"),)))
    values: dict[str, Any] = {
        "id": name,
        "task_id": "task",
        "split": "train",
        "stage": "rl",
        "step": 1,
        "group": "g",
        "seed": 0,
        "policy_version": 0,
        "sequences": tuple(contexts),
        "chunks": tuple(chunks),
        "reward": None if reward is None else Score(reward, reward > 0),
    }
    return Trajectory(**{**values, **changes})


def random_rollouts(seed: int, count: int = 8) -> list[Trajectory]:
    """Random tokens in one or two sequences of one to three chunks, some of them adjacent; half of each group of four
    is rewarded. The engine's log-probabilities are about those of a model that knows nothing."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        contexts: list[Context] = []
        chunks: list[Chunk] = []
        for s in range(int(rng.integers(1, 3))):
            at = 2
            for _ in range(int(rng.integers(1, 4))):
                at += int(rng.integers(0, 3))
                n = int(rng.integers(1, 5))
                logprobs = tuple(float(x) for x in rng.normal(-3.7, 0.8, n))
                chunks.append(Chunk(len(chunks), s, at, at + n, logprobs, (0,) * n, "stop"))
                at += n
            contexts.append(Context(tuple(int(x) for x in rng.integers(0, TOKENS, at)), ()))
        out.append(rollout(f"t{i}", float(i % 2), group=f"g{i // 4}", sequences=tuple(contexts), chunks=tuple(chunks)))
    return out


def loss_input(
    batch: TrainBatch,
    new: Sequence[float],
    old: Sequence[float] | None,
    *,
    reference: Sequence[float] | None = None,
    part: slice | npt.NDArray[np.bool_] = slice(None),
    dtype: str = "float64",
) -> LossInput:
    """The tokens with loss as one micro-batch, or a part of them; entropy 0.5. Both carry a gradient, and so do values,
    which are the column `values` where the batch has it.

    `new`, `old` and `reference` are of all tokens with loss; the engine's are the batch's.
    """
    import torch

    keep = batch.chunk_ids >= 0
    kind = getattr(torch, dtype)
    c = batch.chunks
    table = ChunkTensors(
        *(torch.from_numpy(x) for x in (c.trajectory, c.position, c.count, c.returns, c.positive, c.sampled))
    )

    def tensor(values: Sequence[float] | npt.NDArray[np.float32] | None) -> Any:
        return None if values is None else torch.from_numpy(np.asarray(values, np.float64)[part]).to(kind)

    logprobs = tensor(new).requires_grad_()
    columns = {name: tensor(column[keep]) for name, column in batch.columns.items()}
    return LossInput(
        logprobs,
        torch.full_like(logprobs, 0.5).detach().requires_grad_(),
        tensor(old),
        tensor(batch.engine_logprobs[keep]),
        torch.from_numpy(batch.chunk_ids[keep][part]),
        table,
        batch.normalizer,
        batch.reference_normalizer,
        tensor(reference),
        columns,
        columns["values"].clone().requires_grad_() if "values" in columns else None,
    )


def write_small_policy(folder: Path) -> Path:
    """Write a random model of two narrow layers over `TOKENS` tokens, without a tokenizer, into `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    auto: Any = AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        auto.from_config(config).save_pretrained(str(folder))
    return folder
