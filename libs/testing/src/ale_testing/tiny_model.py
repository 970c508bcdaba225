"""This module writes a small model of the Llama family: random weights in a Hugging Face folder, without any tensor
library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ale.session.tokenizer import ChatTokenizer, train_tokenizer

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, LENGTH = 128, 2, 4, 2, 64, 256
"""Heads are 32 wide: servers have no kernels for narrower ones."""
HEAD = HIDDEN // HEADS
TEXTS = ["an engine samples tokens", "ls -la | wc -l", "grün und blau", '{"name": "shell"}'] * 8
CLASSES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Which model is written. A tied one has no output layer of its own: it is the embedding."""

    architecture: Literal["qwen2", "qwen3", "llama"] = "qwen2"
    tied: bool = True

    def __str__(self) -> str:
        return f"{self.architecture}-{'tied' if self.tied else 'untied'}"


QWEN2_TIED = TinyShape()


def write_tiny_model(folder: Path, seed: int = 0, shape: TinyShape = QWEN2_TIED) -> ChatTokenizer:
    """Write `config.json`, `model.safetensors` (float32) and the tokenizer's files into `folder`; gives the
    tokenizer."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.save(folder)
    (folder / "config.json").write_text(json.dumps(_config(shape, tokenizer), indent=2))
    weights = _weights(shape, tokenizer.vocab_size, np.random.default_rng(seed))
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return tokenizer


def _config(shape: TinyShape, tokenizer: ChatTokenizer) -> dict[str, Any]:
    return {
        "architectures": [CLASSES[shape.architecture]],
        "model_type": shape.architecture,
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "float32",
        "use_cache": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": list(tokenizer.stop_token_ids),
        "bos_token_id": None,
        "initializer_range": 0.02,
    }


def _weights(shape: TinyShape, vocabulary: int, draw: np.random.Generator) -> dict[str, Array]:
    def matrix(*sizes: int) -> Array:
        return (draw.standard_normal(sizes) * 0.1).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocabulary, HIDDEN), "model.norm.weight": 1 + matrix(HIDDEN)}
    if not shape.tied:
        weights["lm_head.weight"] = matrix(vocabulary, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, rows in (("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            weights[f"{layer}self_attn.{name}_proj.weight"] = matrix(rows, HIDDEN)
            if shape.architecture == "qwen2":
                weights[f"{layer}self_attn.{name}_proj.bias"] = matrix(rows)
        if shape.architecture == "qwen3":
            weights[f"{layer}self_attn.q_norm.weight"] = 1 + matrix(HEAD)
            weights[f"{layer}self_attn.k_norm.weight"] = 1 + matrix(HEAD)
        weights[f"{layer}self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD)
        weights[f"{layer}mlp.gate_proj.weight"] = matrix(INNER, HIDDEN)
        weights[f"{layer}mlp.up_proj.weight"] = matrix(INNER, HIDDEN)
        weights[f"{layer}mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
        weights[f"{layer}input_layernorm.weight"] = 1 + matrix(HIDDEN)
        weights[f"{layer}post_attention_layernorm.weight"] = 1 + matrix(HIDDEN)
    return weights
