"""The algorithm, rollouts made by hand, and loss inputs from a packed batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.loss_samples import loss_input as input_of_part
from support.loss_samples import rollout

from ale.specs.driver import DriverContext
from ale.specs.trainer import LossInput, TrainBatch
from ale.trajectory import Trajectory
from ale_pg import PolicyGradient


def make_pg(variant: str = "grpo", **config: Any) -> PolicyGradient:
    """The algorithm with these settings."""
    return PolicyGradient(PolicyGradient.Config(variant=variant, **config), DriverContext())


def input_of(
    batch: TrainBatch,
    new: Sequence[float],
    old: Sequence[float] | None,
    trajectories: Sequence[int] | None = None,
    **how: Any,
) -> LossInput:
    """The tokens with loss as a micro-batch, or those of these trajectories (by their numbers in the batch)."""
    owners = batch.chunks.trajectory[batch.chunk_ids[batch.chunk_ids >= 0]]
    part = slice(None) if trajectories is None else np.isin(owners, trajectories)
    return input_of_part(batch, new, old, part=part, **how)


@pytest.fixture(scope="session")
def make() -> Callable[..., PolicyGradient]:
    """Makes algorithms."""
    return make_pg


@pytest.fixture(scope="session")
def build() -> Callable[..., Trajectory]:
    """Makes trajectories."""
    return rollout


@pytest.fixture(scope="session")
def loss_input() -> Callable[..., LossInput]:
    """Makes loss inputs."""
    return input_of
