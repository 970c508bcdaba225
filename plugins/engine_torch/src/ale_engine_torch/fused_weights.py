"""The weights of the fast decoder: fused, laid out for its kernels, replaced in place.

1. Query, key and value projections are one matrix, gate and up projections another.
2. The rows of each query and key head are reordered so that the two numbers that a rotary embedding rotates are
   adjacent: the decoder then rotates them with one complex multiplication. Dot products stay the same.
3. `load` checks all names and sizes before it writes anything, so that a wrong set of weights changes nothing.
4. With `int8` the projections of the layers are rounded to what int8 can represent; embedding and head are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ale.errors import EngineError
from ale_engine_torch.model_shape import Shape
from ale_engine_torch.precision import Quantization, round_to_int8


@dataclass
class Layer:
    """One decoder layer. Linear weights are [out, in]."""

    norm_in: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class Weights:
    """All weights of the model. The decoder reads `embedding`, `head`, `norm` and `layers`."""

    def __init__(
        self, shape: Shape, device: torch.device, dtype: torch.dtype, quantization: Quantization | None = None
    ) -> None:
        s = shape
        self._shape, self._quantization = s, quantization

        def empty(*size: int) -> Tensor:
            return torch.zeros(size, device=device, dtype=dtype)

        rows = (s.heads + 2 * s.kv_heads) * s.head_dim
        self.layers = [
            Layer(
                norm_in=empty(s.hidden),
                qkv=empty(rows, s.hidden),
                qkv_bias=empty(rows) if s.qkv_bias else None,
                query_norm=empty(s.head_dim) if s.qk_norm else None,
                key_norm=empty(s.head_dim) if s.qk_norm else None,
                out=empty(s.hidden, s.heads * s.head_dim),
                norm_mlp=empty(s.hidden),
                gate_up=empty(2 * s.feed_forward, s.hidden),
                down=empty(s.hidden, s.feed_forward),
            )
            for _ in range(s.layers)
        ]
        self.embedding = empty(s.vocab, s.hidden)
        self.head = self.embedding if s.tied else empty(s.vocab, s.hidden)
        self.norm = empty(s.hidden)

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Copy weights with Hugging Face names in. Raises `EngineError`, with nothing changed, if one is wrong."""
        targets = self._targets()
        for name, target in targets.items():
            if name not in named:
                raise EngineError(
                    f"The weights lack '{name}': they are not of the model that was loaded. Publish the whole state "
                    "dict of the same architecture."
                )
            if named[name].shape != target.shape:
                raise EngineError(
                    f"The weight '{name}' has shape {list(named[name].shape)} where the loaded model has "
                    f"{list(target.shape)}: they are of different models."
                )
        if self._shape.tied and has_own_head(named):
            raise EngineError(
                "The weights have an 'lm_head.weight' that is not 'model.embed_tokens.weight', and the loaded model "
                "uses one for both. Publish weights of the model that was loaded."
            )
        with torch.no_grad():
            for name, target in targets.items():
                weight = self._reorder(name, named[name].detach())
                if self._quantization == "int8" and name.endswith("_proj.weight"):
                    weight = round_to_int8(weight)
                target.copy_(weight)

    def _targets(self) -> dict[str, Tensor]:
        """Each Hugging Face name, and the part of a fused tensor that it fills."""
        s = self._shape
        found = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if not s.tied:
            found["lm_head.weight"] = self.head
        heads = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
        for i, layer in enumerate(self.layers):
            p = f"model.layers.{i}."
            found[p + "input_layernorm.weight"] = layer.norm_in
            found[p + "post_attention_layernorm.weight"] = layer.norm_mlp
            found[p + "self_attn.o_proj.weight"] = layer.out
            found[p + "mlp.down_proj.weight"] = layer.down
            found[p + "mlp.gate_proj.weight"], found[p + "mlp.up_proj.weight"] = layer.gate_up.chunk(2)
            for part, rows in zip("qkv", torch.split(layer.qkv, heads), strict=True):
                found[f"{p}self_attn.{part}_proj.weight"] = rows
            if layer.qkv_bias is not None:
                for part, rows in zip("qkv", torch.split(layer.qkv_bias, heads), strict=True):
                    found[f"{p}self_attn.{part}_proj.bias"] = rows
            if layer.query_norm is not None and layer.key_norm is not None:
                found[p + "self_attn.q_norm.weight"] = layer.query_norm
                found[p + "self_attn.k_norm.weight"] = layer.key_norm
        return found

    def _reorder(self, name: str, weight: Tensor) -> Tensor:
        """Put rows that rotate together next to each other: rows (i, i + head_dim / 2) of a head."""
        if not any(part in name for part in (".q_proj.", ".k_proj.", ".q_norm.", ".k_norm.")):
            return weight
        half = self._shape.head_dim // 2
        paired = weight.reshape(-1, 2, half, *weight.shape[1:]).transpose(1, 2)
        return paired.reshape(weight.shape)


def has_own_head(named: Mapping[str, Tensor]) -> bool:
    """Return whether the output layer has other values than the embedding."""
    head, embedding = named.get("lm_head.weight"), named.get("model.embed_tokens.weight")
    if head is None or embedding is None or head.data_ptr() == embedding.data_ptr():
        return False
    if torch.equal(head, embedding):
        return False
    return not torch.equal(head.nan_to_num(), embedding.nan_to_num())  # broken weights are named elsewhere
