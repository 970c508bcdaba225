"""A trainer that sleeps: what its model and optimizer keep on a device waits in the CPU's memory.

Not tensors are moved but the memory behind them, so that whatever refers to it (views, shards, an optimizer's state) is
as it was once it is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Asleep:
    """What some tensors have in the memory of a kind of device, which is given back until `wake`."""

    def __init__(self, tensors: Iterable[Tensor], device_type: str) -> None:
        local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
        shared = {storage._cdata: storage for storage in map(Tensor.untyped_storage, local)}
        here = [storage for storage in shared.values() if storage.device.type == device_type]
        self._waiting = [(storage, _copy(storage)) for storage in here]
        for storage in here:
            storage.resize_(0)
        if device_type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Take the memory again, with what was in it. Raises `torch.OutOfMemoryError`; what is back then stays."""
        while self._waiting:
            storage, content = self._waiting[-1]
            storage.resize_(content.nbytes())
            storage.copy_(content)
            self._waiting.pop()


def _copy(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return what is in it, in the CPU's memory."""
    return torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage().copy_(storage)


def tensors_of(*modules: nn.Module | None, optimizers: Iterable[torch.optim.Optimizer] = ()) -> Iterator[Tensor]:
    """Yield what modules and optimizers keep: parameters, gradients, buffers, and the optimizers' state."""
    for module in modules:
        if module is not None:
            yield from module.parameters()
            yield from module.buffers()
            yield from (p.grad for p in module.parameters() if p.grad is not None)
    for optimizer in optimizers:
        yield from (p for group in optimizer.param_groups for p in group["params"])
        yield from (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
