"""FSDP2: each rank keeps a part of every parameter, its gradient and its optimizer state; a layer is whole while used.

The unit around the layers is a module that computes log-probabilities, and not the model: the embeddings, the last norm
and the output layer (often one tensor with the embeddings) are needed from the first to the last line of it. Gradients
are added up over the ranks, not averaged: the loss of a batch is the sum over its micro-batches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ale_trainer_torch.policy import Policy


class PolicyModule(nn.Module):
    """`Policy.logprobs` as a module's forward pass."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model
        self._policy = policy

    def forward(
        self, tokens: Tensor, wanted: Tensor, lengths: list[int] | None = None, *, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """See `Policy.logprobs`."""
        return self._policy.logprobs(tokens, wanted, lengths, entropy=entropy)


def shard(policy: Policy, dtype: torch.dtype) -> PolicyModule:
    """Share a model's parameters among the ranks, which compute in `dtype`; parameters and gradients keep their own
    type (float32: the masters)."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard  # which takes a second to import

    module = PolicyModule(policy)
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=policy.model.dtype)
    for layer in _layers(policy.model):
        fully_shard(layer, mp_policy=precision)
    fully_shard(module, mp_policy=precision)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it adds
    return module


def gather_weights(model: Any, dtype: torch.dtype, *, wanted: bool) -> dict[str, Tensor]:
    """Return copies of all weights by their Hugging Face names, in `dtype`; tied ones share a copy.

    All ranks must call it; where they are not `wanted`, nothing is kept.
    """
    copies: dict[int, Tensor] = {}
    out: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in copies:
            kept = value.detach()
            whole = kept.full_tensor() if isinstance(kept, DTensor) else kept.clone()
            whole = whole.to(dtype) if whole.is_floating_point() else whole
            copies[id(value)] = whole if wanted else whole.new_empty(0)
        if wanted:
            out[name] = copies[id(value)]
    return out


def whole_number(value: Tensor) -> float:
    """Return a scalar that may be spread over ranks."""
    return float(value.full_tensor() if isinstance(value, DTensor) else value)


def _layers(model: Any) -> list[nn.Module]:
    """Return the model's layers: what transformers itself keeps in one piece."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]
