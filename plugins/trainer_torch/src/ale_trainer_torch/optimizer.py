"""AdamW and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Optimization:
    """How a model is trained. It computes in `dtype`; parameters, gradients and moments have `master_dtype`."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float
    micro_batch_tokens: int
    logit_chunk: int | None
    packing: bool
    gradient_checkpointing: bool = False
    dtype: torch.dtype = torch.float32
    master_dtype: torch.dtype = torch.float32

    @property
    def has_masters(self) -> bool:
        """Whether parameters are wider than what is computed with and published."""
        return self.master_dtype != self.dtype


def make_optimizer(parameters: Iterable[Tensor], how: Optimization) -> torch.optim.AdamW:
    """Make AdamW with two groups of parameters: matrices with weight decay, and norms and biases without."""
    trained = [p for p in parameters if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": how.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=how.lr, betas=how.betas, eps=how.eps, fused=True)
