"""How ranks share a model: each layer among `tensor` ranks, the layers among `pipeline` stages, batches among the rest.

Ranks are numbered as Megatron does: neighbours share layers, then come data-parallel ranks, then stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel

from ale_torch.ranks.world import World


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes, and where this rank is."""

    world: World
    tensor: int
    pipeline: int
    sequence_parallel: bool

    @property
    def data(self) -> int:
        """How many copies of the model there are."""
        return self.world.size // (self.tensor * self.pipeline)

    @property
    def tensor_rank(self) -> int:
        """Which part of each layer this rank has."""
        return self.world.rank % self.tensor

    @property
    def data_rank(self) -> int:
        """Which copy of the model this rank belongs to."""
        return self.world.rank // self.tensor % self.data

    @property
    def stage(self) -> int:
        """Which layers this rank has."""
        return self.world.rank // (self.tensor * self.data)

    @property
    def is_last(self) -> bool:
        """Whether this rank has the output layer."""
        return self.stage == self.pipeline - 1

    @property
    def speaks(self) -> bool:
        """Whether this rank, of those that compute the same loss, reports it."""
        return self.is_last and self.tensor_rank == 0

    def rank_of(self, stage: int, tensor_rank: int = 0) -> int:
        """Return the rank with that part of that stage, in the first copy of the model."""
        return stage * self.tensor * self.data + tensor_rank

    @property
    def tensor_group(self) -> Any:
        """The ranks that share this rank's layers."""
        return parallel_state.get_tensor_model_parallel_group()

    @property
    def data_group(self) -> Any:
        """The ranks that have the same part of the model."""
        return parallel_state.get_data_parallel_group()

    def start(self, device: torch.device) -> None:
        """Make Megatron's process groups; all ranks call it, once."""
        parallel_state.initialize_model_parallel(self.tensor, self.pipeline)
        if device.type == "cuda":
            tensor_parallel.random.model_parallel_cuda_manual_seed(0)
