"""Models that SGLang 0.5.23 computes otherwise than transformers without a word; ALE refuses them when they are loaded.

1. Attention windows, which SGLang ignores but for the model types in `WINDOWED`.
2. Rotary positions of the type `dynamic`, which it computes as if every text were of the longest length, and the
   `attention_factor` of the type `yarn`, which it does not read.
3. Biases of the feed-forward layers (`mlp_bias`), which it leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ale.errors import ConfigError
from ale_engines.server.model_folder import ModelFolder
from ale_engines.server.rotary_positions import list_rotary_settings

WINDOWED = (
    "afmoe", "exaone4", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text",
    "gpt_oss", "olmo3",
)  # fmt: skip
"""The model types that tell SGLang their window."""


def check_limits(model: ModelFolder, max_context: int) -> None:
    """Raise `ConfigError` if SGLang would compute texts of `max_context` tokens otherwise than transformers."""
    for what in list_differences(model.config, max_context):
        raise ConfigError(
            f"The model in {model.folder} has {what}; SGLang would compute it otherwise than transformers, and so than "
            "the trainer. Take another engine for it (engine: vllm or torch)."
        )


def list_differences(config: Mapping[str, Any], max_context: int) -> Iterator[str]:
    """Yield what of a model SGLang computes otherwise."""
    text = {**config, **(config.get("text_config") or {})}
    for kind, rope in list_rotary_settings(config):
        if kind == "dynamic" and not rope.get("alpha"):
            yield "rotary positions of the type 'dynamic'"
        if kind == "yarn" and rope.get("attention_factor") is not None:
            yield "rotary positions of the type 'yarn' with an attention_factor"
    window = find_window(text)
    if window is not None and window < max_context and text.get("model_type") not in WINDOWED:
        yield (
            f"attention windows of {window} tokens (and engine.max_context allows {max_context}, which may be lowered "
            "to the window)"
        )
    if text.get("mlp_bias"):
        yield "biases in its feed-forward layers (mlp_bias)"


def find_window(text: Mapping[str, Any]) -> int | None:
    """Return the tokens that a layer attends to, where any layer attends to fewer than all."""
    window, layers = text.get("sliding_window"), text.get("layer_types")
    used = "sliding_attention" in layers if layers else text.get("use_sliding_window", True)
    return int(window) if window and used else None
