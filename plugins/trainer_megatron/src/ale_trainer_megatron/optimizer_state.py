"""The optimizer's moments and its wider weights, of which each rank has a range of its parameters.

In a checkpoint they have the names and shapes of the Hugging Face weights, so that ranks of any other layout, or the
trainer `torch`, go on from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ale_torch.training.optimizer_state import MASTER, MOMENTS, Shapes, read_entries, write_entries
from ale_trainer_megatron.weight_map import Part
from ale_trainer_megatron.weights import Mapped

STEP = MOMENTS[0]
PARAMETER = "param"
"""The name that megatron-core gives to the optimizer's own copy of a weight."""


class OptimizerState:
    """What megatron-core's distributed optimizer keeps of the parameters of a model."""

    def __init__(self, mapped: Mapped, optimizer: Any, *, masters: bool) -> None:
        self._mapped = mapped
        self._optimizer = optimizer
        self._masters = masters

    def write(self, folder: Path) -> None:
        """Write the state into `folder`; all ranks must call it."""
        layout = self._mapped.layout
        step = max(layout.world.gather(self._step()))
        kinds = self._kinds(begun=step > 0)
        entries: dict[str, Tensor] = {}
        for number, part in enumerate(self._mapped.parts):
            if part.is_copy or part.stage != layout.stage:
                continue
            # The ranks of a stage take turns, so that each writes its share.
            writes = layout.data_rank == 0 and layout.tensor_rank == number % layout.tensor
            for kind in kinds:
                whole = [torch.tensor(step)] * len(part.names) if kind == STEP else self._gather(part, kind)
                if writes:
                    entries |= {_entry(n, kind): w.cpu().contiguous() for n, w in zip(part.names, whole, strict=True)}
        write_entries(folder, entries)

    def read(self, folder: Path) -> None:
        """Read what a trainer of any layout wrote; all ranks must call it. Raises `TrainerError` for another model's,
        `ConfigError` for a damaged one."""
        parts, shapes, stage = self._mapped.parts, self._mapped.shapes, self._mapped.layout.stage
        expected: set[str] = set()
        found: dict[str, dict[str, Tensor]] = {}

        def choose(stored: Shapes) -> dict[str, Tensor]:
            kinds = self._kinds(begun=any(name.endswith(f"/{STEP}") for name in stored))
            expected.update(_entry(name, kind) for part in parts for name in part.names for kind in kinds)
            names = [name for part in parts if part.stage == stage for name in part.names]
            for kind in kinds:
                found[kind] = {name: torch.zeros(() if kind == STEP else shapes[name]) for name in names}
            return {_entry(name, kind): tensor for kind in kinds for name, tensor in found[kind].items()}

        read_entries(folder, choose, expected)
        if steps := found.pop(STEP, None):
            self._begin(max(map(float, steps.values())))
        for kind, weights in found.items():
            for part in parts:
                if part.stage == stage:
                    self._scatter(kind, part, [weights[name] for name in part.names])

    def set_masters(self, part: Part, whole: list[Tensor]) -> None:
        """Set the wider weights of a part of this rank's stage, if there are any."""
        if self._masters:
            self._scatter(PARAMETER, part, whole)

    def _kinds(self, *, begun: bool) -> list[str]:
        """Return what there is of each weight: steps and averages after the first step, and masters."""
        return (list(MOMENTS) if begun else []) + ([PARAMETER] if self._masters else [])

    def _gather(self, part: Part, kind: str) -> list[Tensor]:
        """Return the whole tensors of a part of this rank's stage, of which each rank has ranges."""
        return self._mapped.gather(part, [self._whole(parameter, kind) for parameter in self._mapped.mine(part)])

    def _whole(self, parameter: nn.Parameter, kind: str) -> Tensor:
        flat = torch.zeros(parameter.numel(), device=parameter.device)
        for start, end, tensor in self._ranges(parameter, kind):
            flat[start:end] = tensor.flatten()
        dist.all_reduce(flat, group=self._mapped.layout.data_group)
        return flat.view(parameter.shape)

    @torch.no_grad()
    def _scatter(self, kind: str, part: Part, whole: list[Tensor]) -> None:
        """Put the whole tensors of a part of this rank's stage into this rank's ranges."""
        parameters = self._mapped.mine(part)
        pieces = part.pieces(whole, self._mapped.layout, [p.shape for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            for start, end, tensor in self._ranges(parameter, kind):
                tensor.copy_(piece.flatten()[start:end].view_as(tensor))

    def _ranges(self, parameter: nn.Parameter, kind: str) -> list[tuple[int, int, Tensor]]:
        """Return what this rank keeps of a parameter: nothing, or the range from start to end of it, flat."""
        for optimizer in self._optimizer.chained_optimizers:
            if parameter in optimizer.model_param_group_index_map:
                where = optimizer._get_model_param_range_map(parameter)["param"]
                kept = optimizer._get_main_param_and_optimizer_states(parameter)
                return [(where.start, where.end, kept[kind])]
        return []

    def _step(self) -> float:
        """Return how many steps were made, as far as this rank knows."""
        states = [s for o in self._optimizer.chained_optimizers for s in o.optimizer.state.values()]
        groups = [g for o in self._optimizer.chained_optimizers for g in o.optimizer.param_groups]
        return max((float(x["step"]) for x in (*states, *groups) if "step" in x), default=0.0)

    def _begin(self, step: float) -> None:
        """Make the optimizer's own state as after `step` steps, with averages to be set."""
        for group in self._optimizer.param_groups:
            group["lr"] = group["weight_decay"] = 0.0
        for optimizer in self._optimizer.chained_optimizers:
            optimizer._init_optimizer_states_with_dummy_values()
            for state in optimizer.optimizer.state.values():
                if "step" in state:  # torch's AdamW; fused ones have it in the group
                    state["step"].fill_(step)
            for group in optimizer.optimizer.param_groups:
                if "step" in group:
                    group["step"] = int(step)


def _entry(name: str, kind: str) -> str:
    return f"{name}/{MASTER if kind == PARAMETER else kind}"
