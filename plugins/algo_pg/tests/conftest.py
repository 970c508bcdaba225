"""Rollouts made by hand, and loss inputs from a packed batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ale.messages import Message
from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTensors, LossInput, TrainBatch
from ale.trajectory import Chunk, Score, Trajectory
from ale.trajectory import Sequence as Context
from ale_pg import PolicyGradient


def make_pg(variant: str = "grpo", **config: Any) -> PolicyGradient:
    """The algorithm with these settings."""
    return PolicyGradient(PolicyGradient.Config(variant=variant, **config), DriverContext())


def build_trajectory(
    name: str,
    reward: float | None,
    rows: Sequence[Sequence[int]] = ((1,),),
    engine: Sequence[float] | None = None,
    **changes: Any,
) -> Trajectory:
    """For each row a sequence: two prompt tokens, then chunks of these lengths, a token of the environment behind each.

    `engine` are the log-probabilities of all sampled tokens in order; without them all are -1.
    """
    given = iter(engine if engine is not None else [-1.0] * sum(map(sum, rows)))
    contexts, chunks = [], []
    for s, lengths in enumerate(rows):
        tokens = [0, 0]
        for n in lengths:
            at = len(tokens)
            chunks.append(Chunk(len(chunks), s, at, at + n, tuple(next(given) for _ in range(n)), (0,) * n, "stop"))
            tokens += [5] * n + [9]
        contexts.append(Context(tuple(tokens), (Message("user", "x"),)))
    values: dict[str, Any] = {
        "id": name, "task_id": "task", "split": "train", "stage": "rl", "step": 1, "group": "g", "seed": 0,
        "policy_version": 0, "sequences": tuple(contexts), "chunks": tuple(chunks),
        "reward": None if reward is None else Score(reward, reward > 0),
    }  # fmt: skip
    return Trajectory(**{**values, **changes})


def input_of(
    batch: TrainBatch,
    new: Sequence[float],
    old: Sequence[float] | None,
    trajectories: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> LossInput:
    """The tokens with loss as a micro-batch, or those of these trajectories (by their numbers in the batch); entropy 0.5."""
    keep = batch.chunk_ids >= 0
    c = batch.chunks
    ids = batch.chunk_ids[keep]
    inside = np.isin(c.trajectory[ids], c.trajectory if trajectories is None else trajectories)
    part = torch.from_numpy(np.flatnonzero(inside))
    table = ChunkTensors(
        *(torch.from_numpy(x) for x in (c.trajectory, c.position, c.count, c.returns, c.positive, c.sampled))
    )
    logprobs = torch.tensor(new, dtype=dtype)[part].requires_grad_()
    return LossInput(
        logprobs,
        torch.full_like(logprobs, 0.5).detach(),
        None if old is None else torch.tensor(old, dtype=dtype)[part],
        torch.from_numpy(batch.engine_logprobs[keep]).to(dtype)[part],
        torch.from_numpy(ids)[part],
        table,
        batch.normalizer,
    )


@pytest.fixture(scope="session")
def make() -> Callable[..., PolicyGradient]:
    """Makes algorithms."""
    return make_pg


@pytest.fixture(scope="session")
def build() -> Callable[..., Trajectory]:
    """Makes trajectories."""
    return build_trajectory


@pytest.fixture(scope="session")
def loss_input() -> Callable[..., LossInput]:
    """Makes loss inputs."""
    return input_of
