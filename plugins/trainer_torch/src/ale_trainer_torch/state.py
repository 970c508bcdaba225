"""The part of a checkpoint that is not the model: the optimizer's moments, and the parameters where the weights do not
tell them (wider masters, adapters).

It is written by `torch.distributed.checkpoint`: each rank writes its shards, and any number of ranks can read them.
Entries are named by the parameters (`model.norm.weight/exp_avg`), so that no order has to be the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ale.errors import ConfigError, TrainerError
from ale_trainer_torch.optimizer import set_rates

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
MASTER = "master"


def write_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer, *, masters: bool) -> None:
    """Write this rank's shards into `folder`; all ranks must call it."""
    with _quiet():
        save(_entries(model, optimizer, masters=masters), checkpoint_id=folder, no_dist=_alone())


def read_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer, *, masters: bool) -> None:
    """Read what `write_shards` wrote into the model and its optimizer; all ranks must call it. Raises `TrainerError`
    for another model's, `ConfigError` for a damaged one."""
    try:
        stored = FileSystemReader(folder).read_metadata().state_dict_metadata
        _begin(optimizer, [p for name, p in model.named_parameters() if f"{name}/{MOMENTS[0]}" in stored])
        entries = _entries(model, optimizer, masters=masters)
        if {n: tuple(t.shape) for n, t in entries.items()} != {n: _shape(m) for n, m in stored.items()}:
            raise TrainerError(
                f"The optimizer state in {folder} is not of this model, or not of trainer.dtype, trainer.lora and "
                "trainer.value_head; take the model's own checkpoint, or start from its weights alone (model.path)."
            )
        with _quiet():
            load(entries, checkpoint_id=folder, no_dist=_alone())
    except TrainerError:
        raise
    except (Exception, CheckpointException) as error:  # a damaged file raises many types
        raise ConfigError(f"{folder} cannot be read; the checkpoint is damaged, use an earlier one.") from error


def _begin(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
    """Make the optimizer's own state, of whatever kind, of parameters that had a gradient: a step of length 0."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    if parameters:
        set_rates(optimizer, lr=0.0, weight_decay=0.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _entries(model: Any, optimizer: torch.optim.Optimizer, *, masters: bool) -> dict[str, Tensor]:
    entries: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        entries |= {f"{name}/{moment}": state[moment] for moment in MOMENTS if moment in state}
        if masters:
            entries[f"{name}/{MASTER}"] = parameter.detach()
    return entries


def _shape(metadata: Any) -> tuple[int, ...]:
    return tuple(getattr(metadata, "size", ()))


def _alone() -> bool:
    return not torch.distributed.is_initialized()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from warning that it works in one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
