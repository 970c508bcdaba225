"""AdamW, also with moments of 8 bits (`torchao`), and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ale_trainer_torch.lora import LoraSettings


@dataclass(frozen=True, slots=True)
class Optimization:
    """How a model is trained. It computes in `dtype`; what is trained, and its optimizer, have `master_dtype`."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float
    micro_batch_tokens: int
    logit_chunk: int | None
    packing: bool
    gradient_checkpointing: bool = False
    lora: LoraSettings | None = None
    optimizer: str = "adamw"
    offload: bool = False
    value_head: bool = False
    dtype: torch.dtype = torch.float32
    master_dtype: torch.dtype = torch.float32

    @property
    def has_masters(self) -> bool:
        """Whether published weights do not determine the parameters: these are wider, or include adapters or a value
        head."""
        return self.master_dtype != self.dtype or self.lora is not None or self.value_head

    @property
    def settings(self) -> dict[str, Any]:
        """What decides what the weights and the optimizer's state of a checkpoint mean (`RankWorker.settings`)."""
        lora = None if self.lora is None else self.lora.model_dump()
        if lora is not None and isinstance(lora["target_modules"], list):
            lora["target_modules"] = sorted(lora["target_modules"])
        return {
            "trainer.dtype": str(self.dtype).removeprefix("torch."),
            "trainer.lora": lora,
            "trainer.optimizer": self.optimizer,
            "trainer.value_head": self.value_head,
        }


def make_optimizer(parameters: Iterable[Tensor], how: Optimization) -> torch.optim.Optimizer:
    """Make AdamW with two groups of parameters: matrices with weight decay, and norms and biases without."""
    trained = [p for p in parameters if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": how.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    if how.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=how.lr, betas=how.betas, eps=how.eps, fused=True)
    from torchao.optim import AdamW8bit

    found: torch.optim.Optimizer = AdamW8bit(groups, lr=how.lr, betas=how.betas, eps=how.eps)
    return found


def set_rates(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """Set the learning rate, and the weight decay of matrices."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # it is compiled, and a new number would be compiled again
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
    optimizer.param_groups[0]["weight_decay"] = weight_decay
