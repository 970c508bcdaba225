"""The two parts of a layer that megatron-core leaves to Transformer Engine: the norm, and attention over sequences end
to end."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor, nn

from ale_torch.training.attention import packed_attention


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, squared in float32 at least, as the models' own."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_others: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.eps = eps
        # Each rank norms its part of a sequence, so that gradients are added up over the ranks.
        parameter: Any = self.weight
        parameter.sequence_parallel = config.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden_size] -> the same shape and type."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class PackedAttention(nn.Module):
    """Causal attention of each sequence to itself alone."""

    def __init__(self, config: Any, layer_number: int, *_args: Any, **_others: Any) -> None:
        super().__init__()
        self.scale = config.softmax_scale
        self.window = config.sliding_windows[layer_number - 1]
        self.is_causal = True

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        _attention_mask: Tensor | None = None,
        *,
        packed_seq_params: PackedSeqParams,
        **_others: Any,
    ) -> Tensor:
        """query [T, heads, D], key and value [T, kv_heads, D] -> [T, heads * D]."""
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        params: Any = packed_seq_params
        out, _ = packed_attention(
            self, q, k, v, None, sequence_lengths=params.lengths, scaling=self.scale, sliding_window=self.window
        )
        return out[0].flatten(1)


class Sequences(PackedSeqParams):  # type: ignore[misc]
    """Sequences end to end in one row, as megatron-core wants to know of them. `lengths` are theirs."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        ends = torch.tensor([0, *lengths], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
        super().__init__(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            max_seqlen_q=max(lengths),
            max_seqlen_kv=max(lengths),
        )
        self.lengths = lengths
