"""Explains names of plugins that do not exist, where the name is well known: `algorithm: grpo`, `engine: vllm`."""

from __future__ import annotations

from ale_train.migration.table import plugin_names


def explain_plugin(kind: str, name: str) -> str | None:
    """Return what there is instead, as a sentence after a space, or None if the name is not known."""
    spelled = name.lower().replace("-", "_")
    sentence = plugin_names().get(kind, {}).get(spelled)
    return f" {sentence}" if sentence else None
