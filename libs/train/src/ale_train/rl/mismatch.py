"""Compares engine and trainer in every step, at little or no cost.

An algorithm that trains on old log-probabilities of the trainer has them for every token, so that the comparison is
free. Another one needs none, and a forward pass over the whole batch would cost a third of its update: there, one
trajectory in eight is compared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ale.specs.trainer import TrainBatch, TrainerBackend
from ale_train.batches import select
from ale_train.batches.mismatch import Differences, compare_logprobs

ONE_IN = 8
"""Of so many trajectories, one is compared if the algorithm does not use the trainer's log-probabilities."""


async def compare_engine(backend: TrainerBackend, batch: TrainBatch, version: int) -> Differences:
    """Compare the engine's log-probabilities in a batch with those of the trainer, whose weights are `version`'s."""
    old = batch.old_logprobs if batch.temperature == 1 else None  # the engine's are at temperature 1
    if old is None:
        batch = replace(batch, temperature=1.0)
        batch = select(batch, np.unique(batch.trajectory)[::ONE_IN].tolist())
        old = await backend.logprobs(batch)
    return compare_logprobs(batch, old, version)
