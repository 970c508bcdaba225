"""Checks of a model folder before a run starts: its chat template, its vocabulary, the end of its turns, its context.

Weights are not read. A name on the hub that is not in the local cache yet is checked after its download.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ale.errors import ConfigError, RequestRefused
from ale.messages import Message
from ale.session.tokenizer import ChatTokenizer
from ale_train.config.run import ModelConfig
from ale_train.models.template_override import apply_template

PROBE = "What is 6 times 7?"
STRETCHED = ("linear", "dynamic", "yarn")
"""Kinds of rotary positions that stretch the context of the configuration by a factor."""


def check_policy(model: ModelConfig, folder: Path) -> ChatTokenizer:
    """Refuse a folder whose tokenizer, chat template and configuration do not make one policy; return its tokenizer.
    Raises `ConfigError`."""
    with tempfile.TemporaryDirectory(prefix="ale-template-") as made:
        tokenizer = ChatTokenizer.load(apply_template(model, folder, Path(made)))
    check_template(tokenizer, "model.chat_template" if model.chat_template is not None else f"model.path: {folder}")
    check_vocabulary(tokenizer, read_config(folder), folder)
    return tokenizer


def check_template(tokenizer: ChatTokenizer, where: str) -> None:
    """Refuse a chat template that cannot write a user's message and the beginning of a reply, or turns without an end.
    Raises `ConfigError`."""
    try:
        text = tokenizer.render([Message("user", PROBE)], prompt=True)
    except RequestRefused as error:
        raise ConfigError(f"{where}: its chat template cannot write a user's message: {error}") from error
    if PROBE not in text:
        raise ConfigError(
            f"{where}: its chat template does not write what a user says (it makes {text[:80]!r} of a message); give "
            "another one with model.chat_template."
        )
    if not tokenizer.stop_token_ids:
        raise ConfigError(
            f"{where}: nothing ends the model's turns: the tokenizer and config.json name no eos_token, and the chat "
            "template writes no token after a reply. Set eos_token in tokenizer_config.json."
        )


def check_vocabulary(tokenizer: ChatTokenizer, config: dict[str, Any], folder: Path) -> None:
    """Refuse a model that has no row for tokens that prompts or replies can hold. Added tokens that the chat template
    does not write may lack one. Raises `ConfigError`."""
    rows = config.get("vocab_size")
    if not isinstance(rows, int):
        return
    beyond = tokenizer.tokens_from(rows)
    if beyond:
        raise ConfigError(
            f"model.path: {folder}: the tokenizer has {tokenizer.vocab_size} tokens, and the model's vocabulary "
            f"(vocab_size in config.json) {rows}: it has no row for {beyond[0]!r}. Take the tokenizer that belongs to "
            "the model, or resize its embeddings (`resize_token_embeddings` of transformers)."
        )


def model_context(folder: Path) -> int | None:
    """Return the longest context, in tokens, that the folder's configuration names."""
    config = read_config(folder)
    longest = config.get("max_position_embeddings")
    if not isinstance(longest, int):
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    if kind not in STRETCHED or not isinstance(factor, int | float):
        return longest
    original = rope.get("original_max_position_embeddings")
    return max(longest, int(factor * (original if kind == "yarn" and isinstance(original, int) else longest)))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of the language model in a folder (of a model with images, its part for text); empty if
    there is none that can be read, which loading the model reports."""
    try:
        found = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    text = found.get("text_config")
    return text if isinstance(text, dict) else found
