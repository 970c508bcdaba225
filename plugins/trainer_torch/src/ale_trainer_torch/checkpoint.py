"""Checkpoints, and published folders: whole or absent.

A checkpoint is a model folder, tokenizer included, so that it serves as `model.path` too. Beside the weights lie
`trainer_state.pt` (random state, version), `optimizer/` (see `state.py`), `reference/`, a model folder, if there is a
reference policy, and `adapter/`, as `peft` writes it, if adapters are trained: the weights have them merged. It is
written under another name and renamed at the end. Over several ranks all make the calls, and rank 0 alone touches
folders and whole weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ale.errors import ConfigError
from ale_ranks.world import World
from ale_trainer_torch.folder import save_pretrained, write_model
from ale_trainer_torch.learner import Learner
from ale_trainer_torch.lora import write_adapter
from ale_trainer_torch.optimizer import Optimization
from ale_trainer_torch.sharding import gather_weights, whole_copy

STATE_FILE = "trainer_state.pt"
OPTIMIZER_FOLDER = "optimizer"
REFERENCE_FOLDER = "reference"
ADAPTER_FOLDER = "adapter"


def write_weights(folder: Path, learner: Learner, weights: dict[str, Tensor]) -> Path:
    """Write whole weights and the tokenizer's files atomically; return the folder. Only rank 0 calls it."""
    with _write_atomically(folder, World()) as new:
        write_model(new, learner.model, weights, learner.folder)
    return folder


def write_checkpoint(folder: Path, learner: Learner) -> None:
    """Write a checkpoint atomically, replacing an existing one; all ranks call it."""
    from ale_trainer_torch.state import write_shards  # which takes a second to import

    first, how = learner.world.rank == 0, learner.how
    with _write_atomically(folder, learner.world) as new:
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
            cuda = torch.cuda.get_rng_state(learner.device) if learner.device.type == "cuda" else None
            state = {"version": learner.version, "rng": torch.get_rng_state(), "cuda_rng": cuda}
            torch.save(state, new / STATE_FILE)


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
    torch.set_rng_state(state["rng"])
    if state["cuda_rng"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng"], device)
    if (folder / REFERENCE_FOLDER).exists():
        learner.read_reference(folder / REFERENCE_FOLDER)
    return learner


def recover_checkpoint(folder: Path) -> None:
    """Restore the old checkpoint if a process died while it was replacing it."""
    _, old = _beside(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def read_state(folder: Path) -> dict[str, Any]:
    """The version and the random state of a checkpoint. Raises `ConfigError`."""
    file = folder / STATE_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} is not a checkpoint of the trainer 'torch': it holds no {STATE_FILE}.")
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises many types
        raise ConfigError(f"{file} cannot be read; the checkpoint is damaged, use an earlier one.") from error
    return state


@contextmanager
def _write_atomically(folder: Path, world: World) -> Iterator[Path]:
    """Yield a new folder beside `folder` to write into; it replaces `folder` only at the end."""
    new, old = _beside(folder)
    if world.rank == 0:
        recover_checkpoint(folder)
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir(parents=True)
    world.barrier()
    yield new
    world.barrier()
    if world.rank == 0:
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    world.barrier()


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return the temporary paths of the new and the old checkpoint, in the same file system."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
