"""The algorithm, rollouts made by hand, and loss inputs from a packed batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from ale.specs.driver import DriverContext
from ale.specs.trainer import LossInput, TrainBatch
from ale.trajectory import Trajectory
from ale_ipa import IPA
from ale_testing.loss_samples import loss_input as input_of_part
from ale_testing.loss_samples import rollout


def make_ipa(**config: Any) -> IPA:
    """The algorithm with these settings."""
    return IPA(IPA.Config(**config), DriverContext())


def build_trajectory(
    name: str, reward: float | None, chunk_lengths: Iterable[int] = (1,), **changes: Any
) -> Trajectory:
    """One sequence of chunks of these lengths; the engine's log-probabilities are -0.1, -0.2, ... in each of them."""
    lengths = list(chunk_lengths)
    engine = [-0.1 * (j + 1) for n in lengths for j in range(n)]
    return rollout(name, reward, [lengths], engine, **{"task_id": name, **changes})


def input_of(
    batch: TrainBatch,
    new: list[float],
    old: list[float] | None,
    part: slice = slice(None),
    dtype: str = "float32",
    **how: Any,
) -> LossInput:
    """The tokens with loss (or a slice of them) as a micro-batch; no gradient unless asked for."""
    found = input_of_part(batch, new, old, part=part, dtype=dtype, **how)
    return replace(found, logprobs=found.logprobs.detach())


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
