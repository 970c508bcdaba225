"""Hermes, Qwen 2.5 and Qwen 3 write any number of calls, with or without text before them, as JSON between tags.

    <tool_call>
    {"name": "shell", "arguments": {"command": "ls"}}
    </tool_call>

The JSON shows where a call ends, so its strings may contain the tags. This format is the default of a run, and the
chat template of models made from nothing writes calls in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ale.messages import ToolCall, ToolSpec, finite_number, refuse_constant, whole_characters
from ale.specs.driver import Driver
from ale.specs.tool_format import FoundCall, ReadReply, ToolFormat

_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_number)
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OPENS, _CLOSES = re.compile(re.escape(OPEN) + r"\s*"), re.compile(r"\s*" + re.escape(CLOSE))


class Hermes(Driver, ToolFormat):
    """Tool calls as JSON between `<tool_call>` tags, as Hermes, Qwen 2.5 and Qwen 3 write them."""

    api_version = ">=1.0,<1.2"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> ReadReply:
        if OPEN not in text:
            return ReadReply(text)
        calls: list[FoundCall] = []
        rest, at = "", 0
        while opens := _OPENS.search(text, at):
            rest += text[at : opens.start()]
            call, end = call_at(text, opens.end(), "arguments")
            closes = _CLOSES.match(text, end)
            if closes is None:
                raise ValueError(f"The tool call is not closed with {CLOSE}.")
            calls.append(call)
            at = closes.end()
        return ReadReply((rest + text[at:]).strip(), tuple(calls))

    def certain_text(self, text: str) -> int:
        begins = text.find(OPEN)
        return begins if begins >= 0 else len(text) - longest_beginning(text, OPEN)

    def write(self, content: str, calls: Sequence[ToolCall]) -> str:
        return content + "".join(
            f'{OPEN}\n{{"name": {json.dumps(c.name)}, "arguments": {c.arguments}}}\n{CLOSE}' for c in calls
        )


def longest_beginning(text: str, mark: str) -> int:
    """Return the length of the longest beginning of a mark with which a text ends."""
    return max((n for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)


def call_at(text: str, at: int, arguments: str) -> tuple[FoundCall, int]:
    """Return the call that begins at `at`, and where it ends. It is a JSON object with `name` and, under the key that
    the parameter `arguments` names, an object.

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
    """Return JSON with unescaped characters. Raises `ValueError` for numbers that JSON does not have."""
    return whole_characters(json.dumps(value, ensure_ascii=False, allow_nan=False))
