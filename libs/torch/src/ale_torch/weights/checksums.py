"""The sums of weights by which an engine proves that it serves what the trainer sent.

`ale_engines.weights.fingerprint` compares them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

DTYPES = ("float32", "bfloat16", "float16")
"""The dtypes in which a server may hold its weights; the trainer does not know which one it uses."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
CHUNK = {"cpu": 2**18, "cuda": 2**24}
"""How many values are cast at once, so that they stay in a processor's cache and take little of a GPU's memory."""


def sum_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, dict[str, int]]:
    """Return for each of `DTYPES` and each tensor the sum, modulo 2**64, of the bit patterns of its values in that
    dtype, as signed integers. They are computed where the tensors are, and waited for once."""
    rows = [torch.stack([sum_bits(tensor, dtype) for dtype in DTYPES]) for tensor in weights.values()]
    sums = (torch.stack(rows) if rows else torch.empty(0, len(DTYPES))).tolist()
    return {
        dtype: {name: row[column] % 2**64 for name, row in zip(weights, sums, strict=True)}
        for column, dtype in enumerate(DTYPES)
    }


def sum_bits(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return the sum of one tensor as an int64 where the tensor is; integers are not cast."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in torch.split(tensor.detach().reshape(-1), CHUNK.get(tensor.device.type, 2**18)):
        values = part.to(getattr(torch, dtype)) if part.is_floating_point() else part
        total += values.view(INTEGERS[values.element_size()]).sum(dtype=torch.int64)
    return total
