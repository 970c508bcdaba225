"""This module writes a small Qwen2 model: random weights in a Hugging Face folder, without any tensor library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ale.session.tokenizer import ChatTokenizer, train_tokenizer

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, LENGTH = 32, 2, 4, 2, 64, 256
TEXTS = ["an engine samples tokens", "ls -la | wc -l", "grün und blau", '{"name": "shell"}'] * 8


def write_tiny_model(folder: Path, seed: int = 0) -> ChatTokenizer:
    """Write `config.json`, `model.safetensors` (float32) and the tokenizer's files into `folder`; gives the
    tokenizer."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(TEXTS, 320)
    tokenizer.save(folder)
    vocabulary = tokenizer.vocab_size
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "attention_dropout": 0.0,
        "eos_token_id": list(tokenizer.stop_token_ids),
        "bos_token_id": None,
        "initializer_range": 0.02,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    draw = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return (draw.standard_normal(shape) * 0.1).astype(np.float32)

    head = HIDDEN // HEADS
    weights = {
        "model.embed_tokens.weight": matrix(vocabulary, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, rows in (("q", HEADS * head), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
            weights[f"{layer}self_attn.{name}_proj.weight"] = matrix(rows, HIDDEN)
            weights[f"{layer}self_attn.{name}_proj.bias"] = matrix(rows)
        weights[f"{layer}self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * head)
        weights[f"{layer}mlp.gate_proj.weight"] = matrix(INNER, HIDDEN)
        weights[f"{layer}mlp.up_proj.weight"] = matrix(INNER, HIDDEN)
        weights[f"{layer}mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
        weights[f"{layer}input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        weights[f"{layer}post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return tokenizer
