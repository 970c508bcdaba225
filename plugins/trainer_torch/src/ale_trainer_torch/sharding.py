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

from ale_torch.training.batch_loss import Passed
from ale_trainer_torch.lora import find_layers, merge, plain_name
from ale_trainer_torch.optimizer import Optimization
from ale_trainer_torch.policy import VALUE_HEAD, Policy


class PolicyModule(nn.Module):
    """`Policy.logprobs` as a module's forward pass."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model
        self._policy = policy

    def forward(self, *args: Any, **how: Any) -> Passed:
        return self._policy.logprobs(*args, **how)


def shard(policy: Policy, how: Optimization, device: torch.device) -> PolicyModule:
    """Share a model's parameters among the ranks, which compute in `how.dtype`; parameters keep their own type, and
    gradients are added up in `how.master_dtype`. With `how.offload` both wait in the CPU's memory, and so does what an
    optimizer keeps.

    The model may be in the CPU's memory: `fully_shard` moves what it shards to `device` and keeps this rank's part. So
    a device holds one layer whole at a time, and at last what is around the layers."""
    from torch.distributed import fsdp  # which takes a second to import
    from torch.distributed.device_mesh import init_device_mesh

    module = PolicyModule(policy)
    options: dict[str, Any] = {
        # The default is the machine's accelerator, also for ranks that compute on the CPU.
        "mesh": init_device_mesh(device.type, (torch.distributed.get_world_size(),)),
        "mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=how.dtype, reduce_dtype=how.master_dtype),
        "offload_policy": fsdp.CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if how.offload else None,
    }
    for layer in _layers(policy.model):
        fsdp.fully_shard(layer, **options)
    fsdp.fully_shard(module, **options)
    for part in module.modules():
        if isinstance(part, fsdp.FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it adds
    return module


def gather_weights(model: Any, dtype: torch.dtype, *, wanted: bool) -> dict[str, Tensor]:
    """Return copies of all weights by their Hugging Face names, in `dtype`, adapters merged and without a
    value head; tied ones share a copy.

    All ranks must call it; where they are not `wanted`, nothing is kept.
    """
    adapted = find_layers(model)
    copies: dict[int, Tensor] = {}
    out: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        plain = plain_name(name)
        if plain is None or plain.startswith(f"{VALUE_HEAD}."):
            continue
        if id(value) not in copies:
            copy = merge(adapted, name, whole_copy(value.detach()), whole_copy)
            copy = copy.to(dtype) if copy.is_floating_point() else copy
            copies[id(value)] = copy if wanted else copy.new_empty(0)
        if wanted:
            out[plain] = copies[id(value)]
    return out


def whole_copy(value: Tensor) -> Tensor:
    """Return a copy of a tensor, gathered from all ranks."""
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def whole_number(value: Tensor) -> float:
    """Return a scalar that may be spread over ranks."""
    return float(value.full_tensor() if isinstance(value, DTensor) else value)


def _layers(model: Any) -> list[nn.Module]:
    """Return the model's layers: what transformers itself keeps in one piece."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]
