"""What forms of tool calls that are JSON have in common."""

from __future__ import annotations

import json
from typing import Any

from ale.specs.tool_format import FoundCall

_DECODER = json.JSONDecoder()


def call_at(text: str, at: int, arguments: str) -> tuple[FoundCall, int]:
    """The call that begins at `at`, and where it ends: a JSON object with `name` and, under the key `arguments`, an object.

    Raises `ValueError`.
    """
    try:
        data, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The tool call is not valid JSON: {error}.") from error
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise ValueError(f'A tool call must be an object with "name" and "{arguments}".')
    given = data.get(arguments, {})
    if not isinstance(given, dict):
        raise ValueError(f"The \"{arguments}\" of '{data['name']}' must be a JSON object.")
    return FoundCall(whole_characters(data["name"]), as_json(given)), end


def as_json(value: Any) -> str:
    """JSON with its characters as they are; with half of one, which no text may hold, all of them escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text == whole_characters(text) else json.dumps(value)


def whole_characters(text: str) -> str:
    """The text with a mark in place of each half of a character."""
    return text.encode("utf-8", "replace").decode()
