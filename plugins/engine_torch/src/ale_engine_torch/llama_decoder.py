"""A decoder for the Llama family (Llama, Qwen2, Qwen3) with a static KV cache, for many short requests on few
cores.

1. The cache is `[layers, 2, slots, kv_heads, max_context, head_dim]`, keys and values. The scheduler keeps the slots
   that decode in front (rows `0..n`), so that a decode step reads a slice of the cache and copies nothing.
2. A decode step computes one token for each of n rows. A tiny model's time depends on the number of kernels and the
   bytes of cache that are read: so projections are fused, keys and values are written with one scatter, and attention
   runs in two parts, each padded to its own longest row, so that a few long contexts do not slow all others down.
3. A prefill writes several tokens of several slots at once, after what the slots already hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ale_engine_torch.fused_weights import Layer, Weights
from ale_engine_torch.model_shape import Shape, rotary_frequencies
from ale_engine_torch.precision import Quantization

IntArray = npt.NDArray[np.int64]

TAIL_ROWS = 16
"""How many rows at the end get their own attention call if that saves enough; the scheduler moves long
contexts there."""

SPLIT_SAVES = 4096
"""Cache positions that a second attention call must save in every layer to be worth its kernels."""


class LlamaDecoder:
    """The model with its cache. It is not thread-safe: only the engine's thread uses it."""

    prefix_reuse = True

    def __init__(
        self,
        shape: Shape,
        slots: int,
        max_context: int,
        device: torch.device,
        dtype: torch.dtype,
        quantization: Quantization | None = None,
    ) -> None:
        self.shape, self.slots, self.max_context = shape, slots, max_context
        self._device, self._dtype = device, dtype
        self.weights = Weights(shape, device, dtype, quantization)
        self._cache = torch.zeros(
            (shape.layers, 2, slots, shape.kv_heads, max_context, shape.head_dim), device=device, dtype=dtype
        )
        angles = torch.arange(max_context, dtype=torch.float32)[:, None] * rotary_frequencies(shape)[None, :]
        self._turns = torch.polar(torch.ones_like(angles), angles).to(device)[:, None]
        # Zeros, then minus infinity: every row of a causal mask is a window of it.
        self._mask = torch.zeros(2 * max_context, device=device, dtype=dtype)
        self._mask[max_context:] = float("-inf")
        # The offset of the first position of (keys or values, kv head) of slot 0 in a layer's cache, in vectors.
        heads = np.arange(shape.kv_heads)[None, :] + np.arange(2)[:, None] * (slots * shape.kv_heads)
        self._heads_at: IntArray = heads.reshape(-1) * max_context

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take over weights by their Hugging Face names. Raises `EngineError`, with nothing changed."""
        self.weights.load(weights)

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` positions of two slots."""
        one, other = self._cache[:, :, a, :, :length], self._cache[:, :, b, :, :length]
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        self._cache[:, :, target, :, :length].copy_(self._cache[:, :, source, :, :length])

    def decode(self, tokens: IntArray, positions: IntArray) -> Tensor:
        """One token for each of the rows `0..n`. tokens, positions [n] -> logits [n, vocab] float32."""
        s, w, n = self.shape, self.weights, len(tokens)
        x = F.embedding(self._to_device(tokens), w.embedding)
        turns = self._turns.index_select(0, self._to_device(positions))
        written = self._to_device(self._cache_indices(np.arange(n), positions))
        parts = [
            (a, b, longest, self._decode_mask(positions[a:b], longest)) for a, b, longest in _attention_parts(positions)
        ]
        vectors = self._cache.view(s.layers, -1, s.head_dim)
        rows = self._cache.view(s.layers, 2, self.slots * s.kv_heads, self.max_context, s.head_dim)
        scale, groups, kv = s.head_dim**-0.5, s.heads // s.kv_heads, s.kv_heads
        for i, layer in enumerate(w.layers):
            qkv = self._qkv(layer, x, turns)
            vectors[i].index_copy_(0, written, qkv[:, s.heads :].reshape(-1, s.head_dim))
            query = qkv[:, : s.heads].reshape(n * kv, groups, s.head_dim)
            keys, values = rows[i].unbind(0)
            attended = []
            for a, b, longest, mask in parts:
                part = slice(a * kv, b * kv)
                scores = torch.baddbmm(mask, query[part], keys[part, :longest].transpose(1, 2), alpha=scale)
                attended.append(torch.bmm(torch.softmax(scores, dim=-1), values[part, :longest]))
            joined = attended[0] if len(attended) == 1 else torch.cat(attended)
            x = self._finish(layer, x, joined.view(n, s.heads * s.head_dim))
        return self._logits(x)

    def prefill(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Write `tokens[i]` into slot `slots[i]` from position `starts[i]` on; logits [B, vocab] of each last token."""
        s, w, b = self.shape, self.weights, len(slots)
        lengths = np.array([len(row) for row in tokens])
        width, begin = int(lengths.max()), np.array(starts)
        padded = np.zeros((b, width), dtype=np.int64)
        for i, row in enumerate(tokens):
            padded[i, : len(row)] = row
        real = np.arange(width)[None, :] < lengths[:, None]
        # Padding comes after the real tokens and is not written to the cache; its positions must still be valid.
        positions = np.minimum(begin[:, None] + np.arange(width)[None, :], self.max_context - 1)
        filled = self._to_device(np.flatnonzero(real))
        written = self._to_device(self._cache_indices(np.repeat(np.array(slots), lengths), positions[real]))
        x = F.embedding(self._to_device(padded.reshape(-1)), w.embedding)
        turns = self._turns.index_select(0, self._to_device(positions.reshape(-1)))
        fresh, longest = not begin.any(), int((begin + lengths).max())
        index, mask = self._to_device(np.array(slots)), None
        if not fresh:
            mask = self._to_device(np.arange(longest)[None, None, None, :] <= positions[:, None, :, None])
        vectors = self._cache.view(s.layers, -1, s.head_dim)
        for i, layer in enumerate(w.layers):
            qkv = self._qkv(layer, x, turns)
            new = qkv[:, s.heads :] if len(filled) == b * width else qkv[:, s.heads :].index_select(0, filled)
            vectors[i].index_copy_(0, written, new.reshape(-1, s.head_dim))
            heads = qkv.view(b, width, -1, s.head_dim).transpose(1, 2)
            query, key, value = torch.split(heads, [s.heads, s.kv_heads, s.kv_heads], dim=1)
            if not fresh:
                key, value = self._cache[i][:, index, :, :longest].unbind(0)
            attended = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=fresh, enable_gqa=s.heads != s.kv_heads
            )
            x = self._finish(layer, x, attended.transpose(1, 2).reshape(b * width, s.heads * s.head_dim))
        last = np.arange(b) * width + lengths - 1
        return self._logits(x.index_select(0, self._to_device(last)))

    # -- parts of a layer --------------------------------------------------------------------------------------

    def _qkv(self, layer: Layer, x: Tensor, turns: Tensor) -> Tensor:
        """[tokens, heads + 2 kv_heads, head_dim]; queries and keys are turned by their positions."""
        s = self.shape
        normed = F.rms_norm(x, (s.hidden,), layer.norm_in, s.eps)
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(x), -1, s.head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key, value = torch.split(qkv, [s.heads, s.kv_heads, s.kv_heads], dim=1)
            query = F.rms_norm(query, (s.head_dim,), layer.query_norm, s.eps)
            key = F.rms_norm(key, (s.head_dim,), layer.key_norm, s.eps)
            qkv = torch.cat([query, key, value], dim=1)
        turned = qkv[:, : s.heads + s.kv_heads]
        pairs = turned.float().view(
            len(x), -1, s.head_dim // 2, 2
        )  # for float32 a view: the multiplication is in place
        torch.view_as_complex(pairs).mul_(turns)
        if pairs.dtype != qkv.dtype:
            turned.copy_(pairs.flatten(-2))
        return qkv

    def _finish(self, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection and feed-forward part, with their residuals."""
        s = self.shape
        x = torch.addmm(x, attended, layer.out.t())
        gate, up = F.linear(F.rms_norm(x, (s.hidden,), layer.norm_mlp, s.eps), layer.gate_up).chunk(2, -1)
        return torch.addmm(x, F.silu(gate).mul_(up), layer.down.t())

    def _logits(self, x: Tensor) -> Tensor:
        s, w = self.shape, self.weights
        return F.linear(F.rms_norm(x, (s.hidden,), w.norm, s.eps), w.head).float()

    # -- indices -----------------------------------------------------------------------------------------------

    def _to_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _cache_indices(self, slots: IntArray, positions: IntArray) -> IntArray:
        """Return the offsets of each token's keys and values (of all kv heads) in a layer's cache, in vectors."""
        slot_at = slots * (self.shape.kv_heads * self.max_context) + positions
        return (slot_at[:, None] + self._heads_at[None, :]).reshape(-1)

    def _decode_mask(self, positions: IntArray, longest: int) -> Tensor:
        """[rows * kv_heads, 1, longest]: 0 up to the row's position, minus infinity behind it."""
        starts = (self.max_context - 1 - positions).repeat(self.shape.kv_heads)
        return self._mask.unfold(0, longest, 1).index_select(0, self._to_device(starts))[:, None]


def _attention_parts(positions: IntArray) -> list[tuple[int, int, int]]:
    """Return (first row, end, longest context) of each part: all rows, or the last ones apart if that saves work."""
    n, longest = len(positions), int(positions.max()) + 1
    if n >= 2 * TAIL_ROWS:
        body = n - TAIL_ROWS
        shorter = int(positions[:body].max()) + 1
        if (longest - shorter) * body >= SPLIT_SAVES:
            return [(0, body, shorter), (body, n, int(positions[body:].max()) + 1)]
    return [(0, n, longest)]
