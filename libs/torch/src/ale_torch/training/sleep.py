"""Sleep of a trainer: the memory that its model and optimizer use on a device moves to the CPU until it wakes.

The memory behind tensors is moved, not the tensors themselves. So everything that refers to it (views, shards, an
optimizer's state) is as before once it is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class Asleep:
    """The contents of some tensors, kept in the CPU's memory; the device's memory is free until `wake`."""

    def __init__(self, tensors: Iterable[Tensor], device_type: str) -> None:
        on_device = [storage for storage in storages_of(tensors) if storage.device.type == device_type]
        self.size = sum(storage.nbytes() for storage in on_device)
        """Bytes that were given back."""
        self._waiting = [(storage, _copy(storage)) for storage in on_device]
        for storage in on_device:
            storage.resize_(0)
        if device_type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Take the memory again, and put the contents back. Raises `torch.OutOfMemoryError`; what is back by then
        stays."""
        while self._waiting:
            storage, content = self._waiting[-1]
            storage.resize_(content.nbytes())
            storage.copy_(content)
            self._waiting.pop()


def tensors_of(*modules: nn.Module | None, optimizers: Iterable[torch.optim.Optimizer] = ()) -> Iterator[Tensor]:
    """Yield the tensors of modules and optimizers: parameters, gradients, buffers, and the optimizers' state."""
    for module in modules:
        if module is not None:
            yield from module.parameters()
            yield from module.buffers()
            yield from (p.grad for p in module.parameters() if p.grad is not None)
    for optimizer in optimizers:
        yield from (p for group in optimizer.param_groups for p in group["params"])
        yield from (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))


def storages_of(tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
    """Return the memory behind tensors, each piece once."""
    pieces = (piece.untyped_storage() for tensor in tensors for piece in _pieces(tensor))
    return list({storage._cdata: storage for storage in pieces}.values())


def _pieces(tensor: Any) -> Iterator[Tensor]:
    """Yield the tensors that have the contents of one that may be a wrapper around them (a shard, 8-bit moments)."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _pieces(getattr(tensor, name))
    elif torch.is_tensor(tensor):  # a shard has its mesh, too
        yield tensor


def _copy(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy in the CPU's memory."""
    return torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage().copy_(storage)
