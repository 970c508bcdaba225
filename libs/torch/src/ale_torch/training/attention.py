"""Attention over packed sequences, end to end in one row; each attends only to itself, without padding or mask.

All other parts of a decoder work on single tokens, so packing does not affect them. The function is registered with
transformers as `PACKED`; the model is called with the lengths as `sequence_lengths`. A sliding window still applies.

On a GPU in half precision all sequences go through one kernel of torch's (FlashAttention's, `varlen_attn`); elsewhere
that kernel does not run, and they go through `scaled_dot_product_attention` one by one.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

PACKED = "ale_packed"
KNOWN = frozenset({"position_ids", "use_cache", "cache_position", "output_router_logits"})
"""Arguments of the attention that may be ignored."""


def _find_kernel() -> Any:
    """Return torch's attention over sequences end to end; None where this torch has none with windows and groups."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if {"window_size", "enable_gqa", "scale"} <= signature(varlen_attn).parameters.keys() else None


KERNEL = _find_kernel()


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sequence_lengths: list[int] | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [B, heads, N, D], key and value [B, kv_heads, N, D] -> [B, N, heads, D]; without lengths each row is one
    sequence.

    Raises `NotImplementedError` for features that it lacks, such as soft-capped scores.
    """
    strange = sorted(name for name, given in others.items() if given is not None and name not in KNOWN)
    if strange or dropout or not getattr(module, "is_causal", True) or query.shape[2] != key.shape[2]:
        raise NotImplementedError(
            f"Packed attention is causal, without cache or dropout, and without {', '.join(strange)}."
        )
    groups = query.shape[1] // key.shape[1]
    if sequence_lengths and has_kernel(query):
        return _in_one_kernel(query, key, value, sequence_lengths, scaling, sliding_window), None
    lengths = sequence_lengths or [query.shape[2]]
    seen = [
        torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=window, is_causal=window is None, scale=scaling, enable_gqa=groups > 1
        )
        for q, k, v in zip(*(torch.split(x, lengths, dim=2) for x in (query, key, value)), strict=True)
        for window in [_window(q.shape[2], sliding_window, q.device)]
    ]
    return torch.cat(seen, dim=2).transpose(1, 2).contiguous(), None


def has_kernel(query: Tensor) -> bool:
    """Whether torch's kernel for sequences end to end runs on the device and in the type of this tensor."""
    return KERNEL is not None and query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)


def _in_one_kernel(
    query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float | None, window: int | None
) -> Tensor:
    """One row. [1, heads, N, D] -> [1, N, heads, D]"""
    ends = torch.tensor([0, *lengths], device=query.device).cumsum(0, dtype=torch.int32)
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    out: Tensor = KERNEL(
        *(q, k, v, ends, ends, max(lengths), max(lengths)),
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[None]


def _window(length: int, width: int | None, device: torch.device) -> Tensor | None:
    """Return the mask of a sliding window [length, length]; None if every token sees all before it."""
    if width is None or width >= length:
        return None
    at = torch.arange(length, device=device)
    behind = at[:, None] - at[None, :]
    return (behind >= 0) & (behind < width)


AttentionInterface.register(PACKED, packed_attention)
