"""The sums of weights by which an engine proves that it serves what the trainer sent.

`ale_engines.weights.fingerprint` compares them, and says what they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ale_torch.weights.tickets import Sums

DTYPES = ("float32", "bfloat16", "float16")
"""The dtypes in which a server may hold its weights; the trainer does not know which one it uses."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
CHUNK = {"cpu": 2**18, "cuda": 2**24}
"""How many values are cast at once, so that they stay in a processor's cache and take little of a GPU's memory."""


def sum_weights(weights: Mapping[str, torch.Tensor]) -> Sums:
    """Return for each of `DTYPES` the sums of each tensor. They are computed where the tensors are, and waited for
    once."""
    found = [sum_bits(tensor, dtype) for dtype in DTYPES for tensor in weights.values()]
    numbers = iter(torch.cat(found).tolist() if found else [])
    sums: dict[str, dict[str, tuple[tuple[int, ...], int, tuple[int, ...]]]] = {}
    for dtype in DTYPES:
        sums[dtype] = {}
        for name, tensor in weights.items():
            total, *moments = (next(numbers) % 2**64 for _ in range(1 + tensor.dim()))
            sums[dtype][name] = (tuple(tensor.shape), total, tuple(moments))
    return sums


def sum_bits(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return the sum of the bit patterns of a tensor's values in a dtype, as signed integers, and for each dimension
    the sum of these times their position in it; as int64, modulo 2**64, where the tensor is. Integers are not cast."""
    shape, device = tensor.shape, tensor.device
    table = tensor.detach().reshape(-1, shape[-1] if len(shape) > 1 and shape[-1] else 1)
    step = max(1, CHUNK.get(device.type, 2**18) // table.shape[1])
    rows, columns = [], torch.zeros(table.shape[1], dtype=torch.int64, device=device)
    for part in torch.split(table, step):
        values = part.to(getattr(torch, dtype)) if part.is_floating_point() else part
        bits = values.contiguous().view(INTEGERS[values.element_size()]).to(torch.int64)
        rows.append(bits.sum(1))
        columns += bits.sum(0)
    if not tensor.numel():
        return torch.zeros(1 + len(shape), dtype=torch.int64, device=device)
    leading = torch.cat(rows).reshape(shape[:-1] if len(shape) > 1 else shape)
    slices = [leading.movedim(at, 0).reshape(size, -1).sum(1) for at, size in enumerate(leading.shape)]
    if len(shape) > 1:
        slices.append(columns)
    moments = [(sums * torch.arange(len(sums), device=device)).sum() for sums in slices]
    return torch.stack([leading.sum(), *moments])
