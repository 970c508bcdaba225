"""Loads the sources of scripted answers: a recording on disk, or a function of the user's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.registry import user_functions

Conversation = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """The argument of a function: the session, the number of the call in it (from 0), and the prompt as text."""

    session: str
    call: int
    prompt: str


def read_recording(path: Path) -> list[Conversation] | dict[str, Conversation]:
    """The conversations of a JSON or JSONL file. Raises `ConfigError`."""
    try:
        text = path.read_text()
        lines = path.suffix == ".jsonl"
        data = [json.loads(line) for line in text.splitlines() if line.strip()] if lines else json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"engine.recording: {path} cannot be read: {error}.") from error
    rows = list(data.values()) if isinstance(data, dict) else data
    sound = isinstance(rows, list) and rows and all(_is_conversation(row) for row in rows)
    if not sound:
        raise ConfigError(
            f"engine.recording: {path} must hold conversations, each a JSON list of at least one text: one per line in "
            "a .jsonl file, else a list of them or an object session -> conversation."
        )
    return {k: tuple(v) for k, v in data.items()} if isinstance(data, dict) else [tuple(row) for row in rows]


def _is_conversation(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and all(isinstance(text, str) for text in row)


def load_function(target: str) -> Callable[[ScriptedCall], Any]:
    """Load the function `package.module:name` or `path/to/file.py:name`. Raises `ConfigError`."""
    try:
        return user_functions.load_function(target).function
    except ConfigError as error:
        raise ConfigError(f"engine.function: {error}") from error
