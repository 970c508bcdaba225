"""Reads the sizes of a model from its Hugging Face config, and decides whether the fast decoder is exact for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FAST_MODEL_TYPES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Llama3Rope:
    """The scaling of low rotary frequencies that Llama 3.1 and later use (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


@dataclass(frozen=True)
class Shape:
    """Sizes and switches of a decoder of the Llama family."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    eps: float
    rope_theta: float
    rope_stretch: Llama3Rope | None
    qkv_bias: bool
    qk_norm: bool
    tied: bool


def fast_shape(config: Mapping[str, Any]) -> Shape | None:
    """Return the shape if the fast decoder is exact for this config; else None, and transformers must run it."""
    # transformers 5 writes `rope_parameters`; folders made by older versions have `rope_theta` and `rope_scaling`.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    kind = config.get("model_type")
    exact = (
        kind in FAST_MODEL_TYPES
        and rope_type in ("default", "llama3")
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("use_sliding_window", False)
        and set(config.get("layer_types") or ()) <= {"full_attention"}
        and not config.get("mlp_bias", False)
        and not config.get("attention_bias", False)
    )
    if not exact:
        return None
    heads = int(config["num_attention_heads"])
    stretch = None
    if rope_type == "llama3":
        stretch = Llama3Rope(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_length=int(rope["original_max_position_embeddings"]),
        )
    return Shape(
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        feed_forward=int(config["intermediate_size"]),
        vocab=int(config["vocab_size"]),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        rope_stretch=stretch,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def rotary_frequencies(shape: Shape) -> Tensor:
    """Compute the radians per position, [head_dim / 2] float32."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    plain = 1.0 / shape.rope_theta**exponents
    stretch = shape.rope_stretch
    if stretch is None:
        return plain
    wavelengths = 2 * math.pi / plain
    turns = stretch.original_length / wavelengths
    share = (turns - stretch.low_freq_factor) / (stretch.high_freq_factor - stretch.low_freq_factor)
    blend = share.clamp(0, 1)  # 0: scaled, 1: unchanged
    return (1 - blend) * plain / stretch.factor + blend * plain
