# mypy: disable-error-code="import-not-found"
"""What vLLM's workers do for ALE: they load weights in place, and say the fingerprint of what they hold.

This module is imported by the server's Python, which has vLLM and no ALE. It mends three faults of vLLM on a CPU:

1. vLLM keeps prepacked copies of the weights, which loading leaves stale (silently, for a tied `lm_head`); so the
   layers are kept as plain `linear`. Experts are packed in place, and loading writes plain ones over them; so they are
   kept plain too, and multiplied one by one.
2. A prompt that is computed in parts samples a token after each part. vLLM throws it away and rewinds the request's
   random generator; a CPU's cannot be rewound, and the engine dies. So that generator is not used for such a token.
3. vLLM has no kernel for experts of other sizes than multiples of 32; the plain ones need none.
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


def keep_plain_experts(experts: Any, layer: torch.nn.Module) -> None:
    """Stand in for `CPUUnquantizedExperts.process_weights_after_loading`: the weights stay as they were loaded."""


def takes_all_sizes(cls: type, moe_config: Any) -> tuple[bool, str | None]:
    """Stand in for `CPUUnquantizedExperts._supports_grouped_gemm`."""
    return True, None


def apply_plain_experts(
    experts: Any,
    output: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: Any,
    *_others: Any,
    apply_router_weight_on_input: bool = False,
    **_named: Any,
) -> None:
    """Stand in for `CPUUnquantizedExperts.apply`: each expert's tokens go through its two plain matrices."""
    linear, total = torch.nn.functional.linear, torch.zeros_like(output)
    for number in range(len(w1)):
        tokens, places = (topk_ids == number).nonzero(as_tuple=True)
        if len(tokens):
            first, second = (None if b is None else b[number] for b in (experts.w1_bias, experts.w2_bias))
            inner = activate(linear(hidden_states[tokens], w1[number], first), activation.value)
            found = linear(inner, w2[number], second)
            if not apply_router_weight_on_input:
                found = found * topk_weights[tokens, places, None].to(found.dtype)
            total.index_add_(0, tokens, found)
    output.copy_(total)


def activate(both: torch.Tensor, name: str) -> torch.Tensor:
    """Return the activation of gate and up, by vLLM's name for it. [n, 2 * m] -> [n, m]"""
    if name == "swigluoai":  # the two alternate, and are bounded: that of gpt-oss
        gate, up = both[..., ::2].clamp(max=7.0), both[..., 1::2].clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    gate, up = both.chunk(2, dim=-1)
    if name == "silu":
        return torch.nn.functional.silu(gate) * up
    if name in ("gelu", "gelu_tanh"):
        return torch.nn.functional.gelu(gate, approximate="tanh" if name == "gelu_tanh" else "none") * up
    raise NotImplementedError(f"experts with the activation '{name}' are not computed on a CPU")


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
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    utils.dispatch_cpu_unquantized_gemm = keep_plain_linear
    CPUUnquantizedExperts.process_weights_after_loading = keep_plain_experts
    CPUUnquantizedExperts._supports_grouped_gemm = classmethod(takes_all_sizes)
    CPUUnquantizedExperts.apply = apply_plain_experts
    GPUModelRunner.sample_tokens = keep_generators(GPUModelRunner.sample_tokens)


def read_folder(folder: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor of each weight in a folder, from the files that transformers reads."""
    files = sorted(file for file in os.listdir(folder) if file.endswith(".safetensors"))
    index = os.path.join(folder, "model.safetensors.index.json")
    if "model.safetensors" in files:
        files = ["model.safetensors"]
    elif os.path.exists(index):
        with open(index, encoding="utf-8") as opened:
            files = sorted({*json.load(opened)["weight_map"].values()})
    for file in files:
        with safe_open(os.path.join(folder, file), "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dictionary
                yield name, tensors.get_tensor(name)


def sum_bits(tensor: torch.Tensor) -> tuple[list[int], int, list[int]]:
    """Return the shape, the sum of the bit patterns as signed integers, and for each dimension the sum of these times
    their position in it, modulo 2**64 (see `ale_engines.weights.fingerprint`).

    The values are read as 64-bit integers in parts; on a CPU these stay in the cache, which is ten times faster."""
    shape, device = tensor.shape, tensor.device
    if not tensor.numel():
        return list(shape), 0, [0] * len(shape)
    table = tensor.detach().reshape(-1, shape[-1] if len(shape) > 1 else 1)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    rows, columns = [], torch.zeros(table.shape[1], dtype=torch.int64, device=device)
    for part in torch.split(table, max(1, (2**18 if device.type == "cpu" else 2**24) // table.shape[1])):
        bits = part.contiguous().view(whole).to(torch.int64)
        rows.append(bits.sum(1))
        columns += bits.sum(0)
    leading = torch.cat(rows).reshape(shape[:-1] if len(shape) > 1 else shape)
    slices = [leading.movedim(at, 0).reshape(size, -1).sum(1) for at, size in enumerate(leading.shape)]
    slices += [columns] if len(shape) > 1 else []
    moments = [(sums * torch.arange(len(sums), device=device)).sum() for sums in slices]
    total, *rest = (number % 2**64 for number in torch.stack([leading.sum(), *moments]).tolist())
    return list(shape), total, rest


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
        """Return the shape and the sums of each parameter as JSON, tied ones once."""
        parameters = self.get_model().named_parameters()  # type: ignore[attr-defined]
        return json.dumps({name: sum_bits(parameter) for name, parameter in parameters})

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
