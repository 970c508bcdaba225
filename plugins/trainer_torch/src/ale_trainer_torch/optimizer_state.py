"""The optimizer's state in a checkpoint, and the parameters where the weights do not determine them; the format is that
of `ale_torch.training.optimizer_state`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ale_torch.training.optimizer_state import MASTER, MOMENTS, Shapes, read_entries, write_entries
from ale_trainer_torch.optimizer import set_rates


def write_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer, *, masters: bool) -> None:
    """Write this rank's shards into `folder`; all ranks must call it."""
    write_entries(folder, _entries(model, optimizer, masters=masters))


def read_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer, *, masters: bool) -> None:
    """Read what `write_shards` wrote into the model and its optimizer; all ranks must call it. Raises `TrainerError`
    for another model's, `ConfigError` for a damaged one."""

    def begin(stored: Shapes) -> dict[str, Tensor]:
        _begin(optimizer, [p for name, p in model.named_parameters() if f"{name}/{MOMENTS[0]}" in stored])
        return _entries(model, optimizer, masters=masters)

    read_entries(folder, begin)


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
