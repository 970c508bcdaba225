"""What SGLang would compute otherwise than transformers is refused when it is loaded, in a sentence that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError
from ale_engines.server.model_folder import ModelFolder
from ale_sglang.model_limits import check_limits

YARN = {"rope_type": "yarn", "factor": 8.0}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rotary positions of the type 'dynamic'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rotary positions of the type 'dynamic'"),
        ({"rope_parameters": {**YARN, "attention_factor": 1.0}}, "'yarn' with an attention_factor"),
        ({"model_type": "mistral", "sliding_window": 8}, "windows of 8 tokens .*max_context allows 64"),
        (
            {"model_type": "qwen2", "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
            "windows",
        ),
        ({"model_type": "x", "text_config": {"model_type": "phi3", "sliding_window": 8}}, "windows"),
        ({"mlp_bias": True}, "biases in its feed-forward layers"),
    ],
)
def test_it_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"model in folder has .*{words}.*engine: vllm or torch"):
        check_limits(ModelFolder(Path("folder"), config, {}, 0), 64)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": YARN},
        {"model_type": "mistral", "sliding_window": 64},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False},
        {"model_type": "qwen2", "sliding_window": 8, "layer_types": ["full_attention"]},
        {"model_type": "gemma3_text", "sliding_window": 8, "layer_types": ["sliding_attention"]},
    ],
)
def test_it_is_served(config: dict[str, Any]) -> None:
    check_limits(ModelFolder(Path("folder"), config, {}, 0), 64)
