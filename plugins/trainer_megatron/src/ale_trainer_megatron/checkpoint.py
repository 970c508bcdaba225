"""Checkpoints of the trainer `megatron`: those of every trainer (`checkpoint_folder.py`), whatever the layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ale_torch_training.checkpoint_folder import (
    OPTIMIZER_FOLDER,
    REFERENCE_FOLDER,
    read_state,
    recover_checkpoint,
    use_random_state,
    write_atomically,
    write_state,
)
from ale_torch_training.folder import save_pretrained, write_model
from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.learner import Learner

if TYPE_CHECKING:
    from ale_trainer_megatron.trainer import MegatronTrainer


def write_checkpoint(folder: Path, learner: Learner) -> None:
    """Write a checkpoint atomically, replacing an existing one; all ranks call it."""
    first = learner.layout.world.rank == 0
    with write_atomically(folder, learner.layout.world) as new:
        weights = learner.weights()
        if first:
            write_model(new, learner.model, weights, learner.folder)
        if learner.reference is not None:
            weights = learner.reference.weights(learner.dtype)
            if first:
                save_pretrained(new / REFERENCE_FOLDER, learner.model, weights)
        del weights
        learner.state.write(new / OPTIMIZER_FOLDER, masters=learner.has_masters)
        if first:
            write_state(new, learner.version, learner.device)


def read_checkpoint(folder: Path, device: torch.device, how: MegatronTrainer.Config, layout: Layout) -> Learner:
    """Return a learner that continues from a checkpoint; all ranks call it. Raises `ConfigError` or `TrainerError`."""
    if layout.world.rank == 0:
        recover_checkpoint(folder)
    layout.world.barrier()
    state = read_state(folder)
    learner = Learner(folder, device, how, layout)
    shapes = {name: weight.shape for name, weight in learner.model.state_dict().items()}
    learner.state.read(folder / OPTIMIZER_FOLDER, shapes, masters=learner.has_masters)
    learner.version = int(state["version"])
    use_random_state(state, device)
    if (folder / REFERENCE_FOLDER).exists():
        learner.read_reference(folder / REFERENCE_FOLDER)
    return learner
