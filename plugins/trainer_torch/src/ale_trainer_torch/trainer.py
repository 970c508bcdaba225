"""The trainer `torch`: AdamW on a Hugging Face causal LM, in one process or over ranks (FSDP2).

All work on the model is a `Worker`'s (`worker.py`). One in float32 lives in this process, in the training thread.
Several ranks, or one that computes in bfloat16 from float32 masters, are processes of their own (`ale_torch.ranks`),
which need a process group; on a cluster all ranks are where it has room for them.

torch and transformers come in with `worker.py`, torch alone with `optimizer.py` on a cluster. The constructor imports
them: settings are checked without them, and no thread is the first to import them while another one does.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ale.errors import ConfigError
from ale.specs.driver import DriverContext
from ale.specs.ranks import Workers
from ale.specs.trainer import TrainBatch
from ale_torch.training.ranked_trainer import RankedTrainer, choose_ranks, start_ranks
from ale_torch.training.settings import TrainerSettings
from ale_trainer_torch.lora import LoraSettings


class TorchTrainer(RankedTrainer):
    """The trainer `torch`."""

    name = "torch"

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"values"})
    transports: tuple[str, ...] = ("memory", "ipc", "nccl", "folder", "gloo")

    class Config(TrainerSettings):
        """Settings of the trainer `torch`."""

        packing: bool = Field(
            True,
            description="Pack sequences without padding if the model allows it; false: pad rows of similar lengths.",
        )
        optimizer: Literal["adamw", "adamw_8bit"] = Field(
            "adamw", description="adamw_8bit keeps moments in 8 bits (torchao): a quarter of their memory."
        )
        offload: bool = Field(
            False, description="Keep weights, gradients and moments in the CPU's memory, and step there (FSDP2)."
        )
        value_head: bool = Field(
            False, description="Train a value head beside the policy, for algorithms with a critic (ppo)."
        )
        lora: LoraSettings | None = Field(
            None, description="Train adapters beside frozen weights, with this rank, alpha and target_modules."
        )
        ranks: int = Field(
            1, ge=1, description="Processes over which the model is sharded (FSDP2); on GPUs each takes one."
        )

        @model_validator(mode="after")
        def _step_in_one_place(self) -> Self:
            if self.offload and self.optimizer != "adamw":
                raise ValueError("offload steps on the CPU, with optimizer: adamw only; leave one of the two out.")
            return self

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        from ale_trainer_torch import optimizer  # noqa: F401  # torch, in this thread

        super().__init__(config, context)
        if config.optimizer == "adamw_8bit" and find_spec("torchao") is None:
            raise ConfigError(
                "trainer.optimizer is 'adamw_8bit', which needs torchao: pip install 'ale-plugin-trainer-torch[8bit]'"
            )
        places = context.ranks
        self._ranks, self._device = choose_ranks(config.ranks, config.device, places)
        self._apart = places is not None or self._ranks > 1 or config.dtype != "float32" or config.offload
        here: tuple[str, ...] = () if self._apart else ("memory",)
        on_gpu = self._device.startswith("cuda") and not config.offload  # where weights are published from
        gpu = ("ipc", "nccl") if places is None else ("nccl",)  # on a cluster an engine has GPUs of its own
        self.transports = (*here, *gpu, "folder") if on_gpu else (*here, "folder", "gloo")

    @classmethod
    def provides(cls, config: Any) -> frozenset[str]:
        return cls.capabilities if config.value_head else frozenset()

    async def values(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = await self._call("values", batch)
        return found

    def make_workers(self) -> Workers:
        import torch

        from ale_trainer_torch.optimizer import Optimization

        c = self.config
        how = Optimization(
            lr=c.lr,
            betas=(c.beta1, c.beta2),
            eps=c.eps,
            weight_decay=c.weight_decay,
            max_grad_norm=c.max_grad_norm,
            micro_batch_tokens=c.micro_batch_tokens,
            logit_chunk=c.logit_chunk,
            packing=c.packing,
            gradient_checkpointing=c.gradient_checkpointing,
            lora=c.lora,
            optimizer=c.optimizer,
            offload=c.offload,
            value_head=c.value_head,
            dtype=getattr(torch, c.dtype),
        )
        if not self._apart:
            from ale_torch.ranks import OneRank, World
            from ale_trainer_torch.worker import Worker

            if c.threads:
                torch.set_num_threads(c.threads)  # torch keeps this number per thread, so the engine has its own
            return OneRank(Worker(World(), self._device, how))
        return start_ranks(
            "ale_trainer_torch.worker:Worker",
            self._ranks,
            (self._device, how),
            device=self._device,
            threads=c.threads,
            launched=self.hold_workers,
            places=self.context.ranks,
        )
