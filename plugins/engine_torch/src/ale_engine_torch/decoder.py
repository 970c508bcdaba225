"""A decoder of the Llama family (Llama, Qwen2) with a static KV cache, made for many short requests on few cores.

1. The cache is `[layers, slots, kv_heads, max_context, head_dim]`. The scheduler keeps the slots that decode in front
   (rows `0..n`), so that a decode step reads a slice of the cache and copies nothing.
2. A decode step is one token for each of n rows: fused qkv and gate/up projections, grouped attention as two batched
   matrix products over the cache up to the longest row.
3. A prefill writes several tokens of several slots at once, behind what the slots already hold.

Weights are read by their Hugging Face names, from a folder's tensors or from a trainer's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ale.errors import EngineError


@dataclass(frozen=True)
class Shape:
    """What of a Hugging Face config the decoder needs."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    rope_theta: float


@dataclass
class _Layer:
    norm_in: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class LlamaDecoder:
    """See the module's docstring. Not thread-safe: the engine's one thread owns it."""

    def __init__(self, shape: Shape, slots: int, max_context: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.max_context = shape, max_context
        self._device, self._dtype = device, dtype
        size = (shape.layers, slots, shape.kv_heads, max_context, shape.head_dim)
        self._keys = torch.zeros(size, device=device, dtype=dtype)
        self._values = torch.zeros(size, device=device, dtype=dtype)
        inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim)
        angles = torch.arange(max_context, dtype=torch.float32)[:, None] * inverse[None, :]
        angles = torch.cat([angles, angles], dim=-1)
        self._cos, self._sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
        self._steps = torch.arange(max_context, device=device)
        self._layers: list[_Layer] = []
        self._embedding = self._head = self._norm = torch.empty(0)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over weights by their Hugging Face names. Raises `EngineError` where one is missing."""

        def get(name: str) -> Tensor:
            if name not in weights:
                raise EngineError(f"The weights lack '{name}'; they are not of the model that was loaded.")
            return weights[name].detach().to(self._device, self._dtype)

        def maybe(name: str) -> Tensor | None:
            return get(name) if name in weights else None

        layers = []
        for i in range(self.shape.layers):
            p = f"model.layers.{i}."
            biases = [maybe(f"{p}self_attn.{x}_proj.bias") for x in "qkv"]
            layers.append(
                _Layer(
                    norm_in=get(p + "input_layernorm.weight").clone(),
                    qkv=torch.cat([get(f"{p}self_attn.{x}_proj.weight") for x in "qkv"]),
                    qkv_bias=torch.cat([b for b in biases if b is not None]) if biases[0] is not None else None,
                    out=get(p + "self_attn.o_proj.weight").clone(),
                    norm_mlp=get(p + "post_attention_layernorm.weight").clone(),
                    gate_up=torch.cat([get(p + "mlp.gate_proj.weight"), get(p + "mlp.up_proj.weight")]),
                    down=get(p + "mlp.down_proj.weight").clone(),
                )
            )
        self._embedding = get("model.embed_tokens.weight").clone()
        self._head = get("lm_head.weight").clone() if "lm_head.weight" in weights else self._embedding
        self._norm = get("model.norm.weight").clone()
        self._layers = layers

    def swap(self, a: int, b: int) -> None:
        """Exchange the contents of two slots."""
        pair, other = [a, b], [b, a]
        for cache in (self._keys, self._values):
            cache[:, pair] = cache[:, other]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for cache in (self._keys, self._values):
            cache[:, target, :, :length] = cache[:, source, :, :length]

    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """One token for each of the rows `0..n`. tokens, positions [n] int64 -> logits [n, vocab]."""
        n, longest = len(tokens), int(positions.max()) + 1
        s = self.shape
        groups = s.heads // s.kv_heads
        rows = self._steps[:n]
        x = F.embedding(tokens, self._embedding)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        mask = torch.zeros((n, 1, 1, longest), device=x.device, dtype=x.dtype)
        mask.masked_fill_((self._steps[:longest][None, :] > positions[:, None])[:, None, None], float("-inf"))
        mask = mask.expand(n, s.kv_heads, 1, longest).reshape(n * s.kv_heads, 1, longest)
        for i, layer in enumerate(self._layers):
            q, k, v = self._qkv(layer, x, cos, sin)
            keys, values = self._keys[i, :n], self._values[i, :n]
            keys[rows, :, positions] = k
            values[rows, :, positions] = v
            past_k = keys.view(n * s.kv_heads, self.max_context, s.head_dim)[:, :longest]
            past_v = values.view(n * s.kv_heads, self.max_context, s.head_dim)[:, :longest]
            q = q.reshape(n * s.kv_heads, groups, s.head_dim) * s.head_dim**-0.5
            scores = (
                torch.baddbmm(mask, q, past_k.transpose(1, 2)) if groups == 1 else q @ past_k.transpose(1, 2) + mask
            )
            attended = torch.bmm(torch.softmax(scores, dim=-1), past_v)
            x = self._finish(layer, x, attended.reshape(n, s.heads * s.head_dim))
        return F.linear(F.rms_norm(x, (s.hidden,), self._norm, s.eps), self._head).float()

    def prefill(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Write `tokens[i]` into slot `slots[i]` from position `starts[i]` on; logits [B, vocab] of each last token."""
        s, b = self.shape, len(slots)
        width = max(map(len, tokens))
        padded = torch.zeros((b, width), dtype=torch.long)
        for i, row in enumerate(tokens):
            padded[i, : len(row)] = torch.tensor(row)
        padded = padded.to(self._device)
        begin = torch.tensor(starts, device=self._device)
        lengths = torch.tensor([len(t) for t in tokens], device=self._device)
        # Padding sits behind the real tokens; its positions are clamped, and what it writes lies beyond every real
        # position of its slot, where nothing looks before it is overwritten.
        positions = (begin[:, None] + self._steps[:width][None, :]).clamp(max=self.max_context - 1)
        longest = int((begin + lengths).max())
        real = self._steps[:width][None, :] < lengths[:, None]
        index = torch.tensor(slots, device=self._device)
        where = index[:, None].expand(b, width)[real], positions[real]
        x = F.embedding(padded, self._embedding)
        cos, sin = self._cos[positions][:, :, None], self._sin[positions][:, :, None]
        mask = (self._steps[:longest][None, None, :] <= positions[:, :, None])[:, None]
        for i, layer in enumerate(self._layers):
            q, k, v = self._qkv(layer, x, cos, sin)
            self._keys[i][where[0], :, where[1]] = k[real]
            self._values[i][where[0], :, where[1]] = v[real]
            keys, values = self._keys[i, index, :, :longest], self._values[i, index, :, :longest]
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=s.heads != s.kv_heads
            )
            x = self._finish(layer, x, attended.transpose(1, 2).reshape(b, width, s.heads * s.head_dim))
        last = x[torch.arange(b, device=x.device), lengths - 1]
        return F.linear(F.rms_norm(last, (s.hidden,), self._norm, s.eps), self._head).float()

    def _qkv(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projected and rotated: [..., heads, head_dim] and twice [..., kv_heads, head_dim]."""
        s = self.shape
        normed = F.rms_norm(x, (s.hidden,), layer.norm_in, s.eps)
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias)
        qkv = qkv.view(*qkv.shape[:-1], s.heads + 2 * s.kv_heads, s.head_dim)
        rotated = qkv[..., : s.heads + s.kv_heads, :]
        half = s.head_dim // 2
        turned = torch.cat([-rotated[..., half:], rotated[..., :half]], dim=-1)
        rotated = rotated * cos + turned * sin
        return rotated[..., : s.heads, :], rotated[..., s.heads :, :], qkv[..., s.heads + s.kv_heads :, :]

    def _finish(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection and feed-forward part, with their residuals."""
        x = x + F.linear(attended, layer.out)
        gate, up = F.linear(F.rms_norm(x, (self.shape.hidden,), layer.norm_mlp, self.shape.eps), layer.gate_up).chunk(
            2, -1
        )
        return x + F.linear(F.silu(gate) * up, layer.down)
