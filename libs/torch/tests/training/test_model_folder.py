"""Folders of models are read alike by releases of transformers before and after names in config.json changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
)

from ale_torch.training.model_folder import save_pretrained

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": None,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 8.0}
CASES: dict[str, tuple[PreTrainedConfig, dict[str, Any]]] = {
    "a base of its own": (
        Qwen2Config(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        {"rope_theta": 1e6, "rope_scaling": None},
    ),
    "scaled": (
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}),
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    ),
    "a part of each head": (
        Phi3Config(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_scaling": None},
    ),
    "two kinds of layers": (
        Gemma3TextConfig(
            **SIZES,
            head_dim=8,
            rope_parameters={
                "full_attention": {"rope_theta": 1e6, **LINEAR},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": LINEAR},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rotary_positions_are_written_under_the_earlier_names_too(tmp_path: Path, name: str) -> None:
    config, expected = CASES[name]
    model = AutoModelForCausalLM.from_config(config)
    save_pretrained(tmp_path, model, model.state_dict())
    written = json.loads((tmp_path / "config.json").read_text())
    assert {key: written.get(key) for key in expected} == expected
    assert written["torch_dtype"] == written["dtype"] == "float32"
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters == config.rope_parameters
