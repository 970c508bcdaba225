"""Refuses models whose rotary positions a server computes in another way than transformers, and so than the trainer.

1. The type `longrope` has two sets of positions: transformers takes the one for short texts up to a length and the
   other beyond it, for all of the text. A server has to keep what it cached, so it takes one of them by its context.
2. With `longrope` a server scales attention by the ratio of the two lengths, whatever the folder says.
3. The type `dynamic` changes beyond the model's own limit, to which a server's context is bound already."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ale.errors import ConfigError
from ale_engines.server.model_folder import ModelFolder

Settings = Mapping[str, Any]


def list_rotary_settings(config: Settings) -> Iterator[tuple[str, Settings]]:
    """Yield the types of a model's rotary positions with their settings; layers may have different ones."""
    text = {**config, **(config.get("text_config") or {})}
    # transformers 5 writes `rope_parameters`; folders of older releases have `rope_scaling`, and `su` for `longrope`.
    found = text.get("rope_parameters") or text.get("rope_scaling") or {}
    for rope in [found] if not any(isinstance(part, dict) for part in found.values()) else found.values():
        if isinstance(rope, dict):
            kind = str(rope.get("rope_type") or rope.get("type") or "default")
            original = rope.get("original_max_position_embeddings") or text.get("original_max_position_embeddings")
            yield (
                "longrope" if kind == "su" else kind,
                {**rope, "original": original, "limit": text.get("max_position_embeddings")},
            )


def check_rotary_positions(model: ModelFolder, max_context: int, server: str) -> None:
    """Raise `ConfigError` if every server computes the positions of texts of `max_context` tokens otherwise."""
    for kind, rope in list_rotary_settings(model.config):
        if kind != "longrope" or not rope["original"]:
            continue
        length = int(rope["original"])
        if max_context > length:
            raise ConfigError(
                f"The model in {model.folder} has rotary positions of the type '{kind}', which are others for all of a "
                f"text once it is longer than {length} tokens; {server} would compute shorter texts otherwise than the "
                f"trainer. Set engine.max_context to at most {length} (here it allows {max_context})."
            )
        ratio = float(rope["limit"] or length) / length
        scale = rope.get("attention_factor") or scale_attention(float(rope.get("factor") or ratio), length)
        if not math.isclose(scale, rope.get("short_mscale") or scale_attention(ratio, length), rel_tol=1e-6):
            raise ConfigError(
                f"The model in {model.folder} has rotary positions of the type '{kind}' with an attention_factor or "
                f"factor of its own, which {server} computes otherwise than transformers, and so than the trainer. "
                "Take another engine for it (engine: torch)."
            )


def scale_attention(factor: float, length: int) -> float:
    """Return the scale of attention for texts that are `factor` times as long as `length`."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
