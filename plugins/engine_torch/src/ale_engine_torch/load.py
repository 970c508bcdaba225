"""From a Hugging Face folder to a decoder: the fast one where the architecture is known, else the general one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor

from ale.errors import ConfigError
from ale_engine_torch.any_model import AnyModelDecoder
from ale_engine_torch.decoder import LlamaDecoder, Shape

FAST_MODEL_TYPES = ("llama", "qwen2")


class Decoder(Protocol):
    """What the scheduler needs of a model."""

    max_context: int

    def load(self, weights: Mapping[str, Tensor]) -> None: ...
    def swap(self, a: int, b: int) -> None: ...
    def copy_prefix(self, source: int, target: int, length: int) -> None: ...
    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor: ...
    def prefill(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor: ...


def load_decoder(folder: Path, slots: int, max_context: int, device: torch.device, dtype: torch.dtype) -> Decoder:
    """Raises `ConfigError` where the folder holds no model."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The folder {folder} holds no model: its config.json cannot be read ({error}).") from error
    limit = config.get("max_position_embeddings") or config.get("n_positions") or max_context
    context = min(max_context, int(limit))
    shape = fast_shape(config)
    if shape is None or not list(folder.glob("*.safetensors")):
        try:
            return AnyModelDecoder(folder, slots, context, device, dtype)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(
                f"The folder {folder} holds no causal language model that can be loaded: {reason}"
            ) from error
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    decoder = LlamaDecoder(shape, slots, context, device, dtype)
    decoder.load(weights)
    return decoder


def fast_shape(config: Mapping[str, Any]) -> Shape | None:
    """The shape, where `LlamaDecoder` computes exactly what this config means; else None."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    plain_rope = rope.get("rope_type", rope.get("type", "default")) == "default"
    known = (
        config.get("model_type") in FAST_MODEL_TYPES
        and plain_rope
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("use_sliding_window", False)
        and not config.get("mlp_bias", False)
        and not (config["model_type"] == "llama" and config.get("attention_bias", False))
    )
    if not known:
        return None
    heads = int(config["num_attention_heads"])
    return Shape(
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        vocab=int(config["vocab_size"]),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
    )
