"""Attention over packed sequences, end to end in one row; each attends only to itself, without padding or mask.

All other parts of a decoder work on single tokens, so packing does not affect them. The function is registered with
transformers as `PACKED`; the model is called with the lengths as `sequence_lengths`. A sliding window still applies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

PACKED = "ale_packed"
KNOWN = frozenset({"position_ids", "use_cache", "cache_position", "output_router_logits"})
"""Arguments of the attention that may be ignored."""


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
    lengths = sequence_lengths or [query.shape[2]]
    seen = [
        torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=window, is_causal=window is None, scale=scaling, enable_gqa=groups > 1
        )
        for q, k, v in zip(*(torch.split(x, lengths, dim=2) for x in (query, key, value)), strict=True)
        for window in [_window(q.shape[2], sliding_window, q.device)]
    ]
    return torch.cat(seen, dim=2).transpose(1, 2).contiguous(), None


def _window(length: int, width: int | None, device: torch.device) -> Tensor | None:
    """Return the mask of a sliding window [length, length]; None if every token sees all before it."""
    if width is None or width >= length:
        return None
    at = torch.arange(length, device=device)
    behind = at[:, None] - at[None, :]
    return (behind >= 0) & (behind < width)


AttentionInterface.register(PACKED, packed_attention)
