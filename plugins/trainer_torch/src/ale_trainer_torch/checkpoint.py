"""Checkpoints of the trainer `torch`: those of every trainer (`checkpoint_folder.py`), and `adapter/`, as `peft` writes
it, if adapters are trained: the weights have them merged."""

from __future__ import annotations

from pathlib import Path

import torch

from ale_ranks.world import World
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
from ale_trainer_torch.learner import Learner
from ale_trainer_torch.lora import write_adapter
from ale_trainer_torch.optimizer import Optimization
from ale_trainer_torch.sharding import gather_weights, whole_copy

ADAPTER_FOLDER = "adapter"


def write_checkpoint(folder: Path, learner: Learner) -> None:
    """Write a checkpoint atomically, replacing an existing one; all ranks call it."""
    from ale_trainer_torch.state import write_shards  # which takes a second to import

    first, how = learner.world.rank == 0, learner.how
    with write_atomically(folder, learner.world) as new:
        weights = learner.weights()
        if first:
            write_model(new, learner.model, weights, learner.folder)
        del weights
        if learner.reference is not None:
            weights = gather_weights(learner.reference, how.dtype, wanted=first)
            if first:
                save_pretrained(new / REFERENCE_FOLDER, learner.reference, weights)
        if how.lora is not None:
            write_adapter(new / ADAPTER_FOLDER, learner.model, how.lora, whole_copy, first=first)
        write_shards(new / OPTIMIZER_FOLDER, learner.model, learner.optimizer, masters=how.has_masters)
        if first:
            write_state(new, learner.version, learner.device)


def read_checkpoint(folder: Path, device: torch.device, how: Optimization, world: World) -> Learner:
    """Return a learner that continues from a checkpoint; all ranks call it. Raises `ConfigError` or `TrainerError`."""
    from ale_trainer_torch.state import read_shards

    if world.rank == 0:
        recover_checkpoint(folder)
    world.barrier()
    state = read_state(folder)
    learner = Learner(folder, device, how, world)
    read_shards(folder / OPTIMIZER_FOLDER, learner.model, learner.optimizer, masters=how.has_masters)
    learner.version = int(state["version"])
    use_random_state(state, device)
    if (folder / REFERENCE_FOLDER).exists():
        learner.read_reference(folder / REFERENCE_FOLDER)
    return learner
