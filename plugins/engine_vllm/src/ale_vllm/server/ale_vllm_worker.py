# mypy: disable-error-code="import-not-found"
"""What vLLM's workers do for ALE: they load weights in place, and say the fingerprint of what they hold.

This module is imported by the server's Python, which has vLLM and no ALE. It mends two faults of vLLM on a CPU:

1. vLLM keeps prepacked copies of the weights, which loading leaves stale (silently, for a tied `lm_head`); so the
   layers are kept as plain `linear`.
2. A prompt that is computed in parts samples a token after each part. vLLM throws it away and rewinds the request's
   random generator; a CPU's cannot be rewound, and the engine dies. So that generator is not used for such a token.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from safetensors import safe_open
from vllm.model_executor.layers import utils
from vllm.platforms import current_platform
from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # the CPU's is made of it


def keep_plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Stand in for vLLM's choice of a CPU kernel: no copy of the weight is made."""
    layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]


def keep_generators(sample_tokens: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `GPUModelRunner.sample_tokens`: rows whose token will be thrown away draw from the generator of all."""

    def sample(runner: Any, *arguments: Any, **named: Any) -> Any:
        generators = runner.input_batch.generators
        thrown_away = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        kept = {row: generators.pop(row) for row in thrown_away if row in generators}
        try:
            return sample_tokens(runner, *arguments, **named)
        finally:
            generators.update(kept)

    return sample


if current_platform.is_cpu():
    if not hasattr(utils, "dispatch_cpu_unquantized_gemm"):
        raise RuntimeError("this release of vLLM chooses its CPU kernels elsewhere: new weights would not reach them")
    utils.dispatch_cpu_unquantized_gemm = keep_plain_linear
    GPUModelRunner.sample_tokens = keep_generators(GPUModelRunner.sample_tokens)


def read_folder(folder: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor of each weight in a folder."""
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            with safe_open(os.path.join(folder, file), "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no dictionary
                    yield name, tensors.get_tensor(name)


def sum_bits(tensor: torch.Tensor) -> int:
    """The sum of the bit patterns as signed integers, modulo 2**64 (see `ale_engines.weights.fingerprint`).

    On a CPU, `sum` writes all values as 64-bit integers first, so they are summed in parts that stay in the cache: this
    is ten times faster."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.detach().contiguous().view(whole)
    parts = torch.split(bits.view(-1), 2**18) if bits.device.type == "cpu" else (bits,)
    return sum(int(part.sum(dtype=torch.int64)) for part in parts) % 2**64


class AleWorker:
    """Methods that are added to each worker, for `collective_rpc`."""

    def ale_load_folder(self, folder: str) -> None:
        """Load a whole model's weights."""
        self._ale_load(read_folder(folder))

    def ale_receive(self, module: str, request: str) -> None:
        """Receive weights that a trainer broadcasts. `module` is the file of `ale_torch.weights.receiver`."""
        device = next(self.get_model().parameters()).device  # type: ignore[attr-defined]
        self._ale_load(_import_file(module).receive(self.rank, device, **json.loads(request)))  # type: ignore[attr-defined]

    def ale_open_handles(self, module: str, handles: str) -> None:
        """Load weights in the memory of a GPU that another process shares; `handles` is in hexadecimal."""
        device = next(self.get_model().parameters()).device  # type: ignore[attr-defined]
        self._ale_load(_import_file(module).open_handles(bytes.fromhex(handles), device))

    def ale_gpu(self) -> str:
        """Return the UUID of this worker's GPU."""
        device = next(self.get_model().parameters()).device  # type: ignore[attr-defined]
        return str(torch.cuda.get_device_properties(device).uuid)

    def ale_fingerprint(self) -> str:
        """Return the bit sum of each parameter as JSON, tied ones once."""
        model = self.get_model()  # type: ignore[attr-defined]
        return json.dumps({name: sum_bits(parameter) for name, parameter in model.named_parameters()})

    def _ale_load(self, source: Iterator[tuple[str, torch.Tensor]]) -> None:
        with torch.inference_mode():
            if current_platform.is_cpu():
                self.get_model().load_weights(source)  # type: ignore[attr-defined]
            else:
                # A GPU's layers may have been converted after loading; vLLM loads them as at the start.
                self.model_runner.reload_weights(weights_iterator=source)  # type: ignore[attr-defined]
                torch.accelerator.synchronize()


def _import_file(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("ale_weight_receiver", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
