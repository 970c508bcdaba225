"""The trainer `megatron`: megatron-core over tensor, pipeline and data parallel ranks, each a process of its own.

torch and megatron-core come in with `worker.py`, in the ranks: settings are checked without them.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from ale.specs.driver import DriverContext
from ale.specs.ranks import Workers
from ale_torch.training.ranked_trainer import RankedTrainer, choose_ranks, start_ranks
from ale_torch.training.settings import TrainerSettings


class MegatronTrainer(RankedTrainer):
    """The trainer `megatron`."""

    name = "megatron"
    api_version = ">=1.0,<1.2"
    capabilities = frozenset[str]()
    transports: tuple[str, ...] = ("ipc", "nccl", "folder", "gloo")

    class Config(TrainerSettings):
        """Settings of the trainer `megatron`."""

        ranks: int = Field(
            1, ge=1, description="Processes, of which tensor_parallel x pipeline_parallel hold one copy of the model."
        )
        tensor_parallel: int = Field(1, ge=1, description="Ranks that share each layer's matrices.")
        pipeline_parallel: int = Field(1, ge=1, description="Stages that the layers are spread over.")
        sequence_parallel: bool = Field(
            False, description="Share norms and residuals among the tensor-parallel ranks too: less memory."
        )

        @model_validator(mode="after")
        def _ranks_fit(self) -> Self:
            model = self.tensor_parallel * self.pipeline_parallel
            if self.ranks % model:
                raise ValueError(
                    f"ranks is {self.ranks}, but tensor_parallel {self.tensor_parallel} x pipeline_parallel "
                    f"{self.pipeline_parallel} need a multiple of {model}."
                )
            if self.sequence_parallel and self.tensor_parallel == 1:
                raise ValueError("sequence_parallel needs tensor_parallel of 2 or more.")
            return self

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        places = context.ranks
        self._ranks, self._device = choose_ranks(config.ranks, config.device, places)
        gpu = ("ipc", "nccl") if places is None else ("nccl",)  # on a cluster an engine has GPUs of its own
        self.transports = (*gpu, "folder") if self._device.startswith("cuda") else ("folder", "gloo")

    def make_workers(self) -> Workers:
        return start_ranks(
            "ale_trainer_megatron.worker:Worker",
            self._ranks,
            (self._device, self.config),
            device=self._device,
            threads=self.config.threads,
            launched=self.hold_workers,
            places=self.context.ranks,
        )
