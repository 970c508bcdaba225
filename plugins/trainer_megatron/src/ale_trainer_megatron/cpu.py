"""Stand-ins for the spots of megatron-core that know no device but CUDA, so that it runs on a CPU over gloo.

They are installed once, in a process that does nothing but this trainer's work, and only on a CPU. Each answers what
the CUDA one would answer on a machine with one device, and nothing waits for anything, because nothing is asynchronous.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from megatron.core.tensor_parallel import random
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def run_on_cpu() -> None:
    """Install the stand-ins for the rest of this process."""
    cuda: Any = torch.cuda
    tensor: Any = torch.Tensor
    megatron_random: Any = random
    cuda.current_device = lambda: CPU
    cuda.synchronize = lambda *_: None
    cuda.Stream = _Stream
    cuda.current_stream = lambda *_: _Stream()
    cuda.stream = lambda *_: nullcontext()
    tensor.cuda = lambda self, *_, **__: self
    tensor.type = _named_as_on_cuda(tensor.type)
    tracker: Any = megatron_random.CudaRNGStatesTracker
    tracker.fork = _fork
    megatron_random._get_cuda_rng_state = lambda *_, **__: None  # there is none to keep
    megatron_random._set_cuda_rng_state = lambda *_, **__: None
    mode: Any = _OnCpu()
    mode.__enter__()


class _Stream:
    """A stream on which all is done already."""

    def wait_stream(self, _other: Any) -> None:
        """Nothing to wait for."""

    def record_event(self) -> _Stream:
        """Return an event that is over."""
        return self

    def synchronize(self) -> None:
        """Nothing to wait for."""


@contextmanager
def _fork(_tracker: Any, _name: str = "") -> Any:
    yield


def _named_as_on_cuda(real: Any) -> Any:
    """Wrap `Tensor.type`: megatron-core knows what is a weight by the name of its type."""

    def name_or_convert(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return real(self, *args, **kwargs)
        with torch._C.DisableTorchFunction():
            return real(self).replace("torch.", "torch.cuda.", 1)

    return name_or_convert


class _OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on "cuda"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        return func(*args, **kwargs)
