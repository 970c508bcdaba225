"""Rollouts made by hand, and loss inputs from a packed batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from ale.messages import Message
from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTensors, LossInput, TrainBatch
from ale.trajectory import Chunk, Score, Sequence, Trajectory
from ale_ipa import IPA


def make_ipa(**config: Any) -> IPA:
    """The algorithm with these settings."""
    return IPA(IPA.Config(**config), DriverContext())


def build_trajectory(
    name: str, reward: float | None, chunk_lengths: Iterable[int] = (1,), **changes: Any
) -> Trajectory:
    """One sequence: two prompt tokens, then chunks with one token of the environment behind each."""
    tokens, chunks, at = [0, 0], [], 2
    for i, n in enumerate(chunk_lengths):
        chunks.append(Chunk(i, 0, at, at + n, tuple(-0.1 * (j + 1) for j in range(n)), (0,) * n, "stop"))
        tokens += [5] * n + [9]
        at += n + 1
    values: dict[str, Any] = {
        "id": name, "task_id": name, "split": "train", "stage": "rl", "step": 1, "group": "g", "seed": 0,
        "policy_version": 0, "sequences": (Sequence(tuple(tokens), (Message("user", "x"),)),), "chunks": tuple(chunks),
        "reward": None if reward is None else Score(reward, reward > 0),
    }  # fmt: skip
    return Trajectory(**{**values, **changes})


def input_of(
    batch: TrainBatch,
    new: list[float],
    old: list[float] | None,
    part: slice = slice(None),
    dtype: torch.dtype = torch.float32,
) -> LossInput:
    """The tokens with loss (or a slice of them) as a micro-batch; entropy 0.5 everywhere."""
    keep = batch.chunk_ids >= 0
    c = batch.chunks
    table = ChunkTensors(
        *(torch.from_numpy(x) for x in (c.trajectory, c.position, c.count, c.returns, c.positive, c.sampled))
    )
    logprobs = torch.tensor(new, dtype=dtype)[part]
    return LossInput(
        logprobs,
        torch.full_like(logprobs, 0.5),
        None if old is None else torch.tensor(old, dtype=dtype)[part],
        torch.from_numpy(batch.engine_logprobs[keep]).to(dtype)[part],
        torch.from_numpy(batch.chunk_ids[keep])[part],
        table,
        batch.normalizer,
    )


@pytest.fixture(scope="session")
def make() -> Callable[..., IPA]:
    """Makes algorithms."""
    return make_ipa


@pytest.fixture(scope="session")
def build() -> Callable[..., Trajectory]:
    """Makes trajectories."""
    return build_trajectory


@pytest.fixture(scope="session")
def loss_input() -> Callable[..., LossInput]:
    """Makes loss inputs."""
    return input_of
