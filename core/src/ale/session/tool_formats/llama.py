"""In Llama 3.1 to 3.3 the whole reply is the call, a JSON object; several calls are separated by semicolons.

    {"name": "shell", "parameters": {"command": "ls"}}

The token `<|python_tag|>` may stand before it. A reply has either content or calls: a call after text could also be
prose that contains JSON, so it is not read as a call."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ale.messages import ToolCall, ToolSpec
from ale.session.tool_formats.hermes import call_at
from ale.specs.driver import Driver
from ale.specs.tool_format import FoundCall, ReadReply, ToolFormat

MARK = "<|python_tag|>"
_BEGINS = re.compile(r'\{\s*"(name|type)"\s*:')
_NEXT = re.compile(r"\s*;\s*")


class Llama(Driver, ToolFormat):
    """A reply that is one JSON object, or several with semicolons between them, as Llama 3.1 to 3.3 write calls."""

    api_version = ">=1.0,<1.2"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> ReadReply:
        """A reply is a call if it begins with `<|python_tag|>` or as the JSON of a call."""
        rest = text.strip()
        if not (rest.startswith(MARK) or _BEGINS.match(rest)):
            return ReadReply(text)
        rest = rest.removeprefix(MARK).strip()
        calls: list[FoundCall] = []
        at = 0
        while True:
            call, end = call_at(rest, at, "parameters")
            calls.append(call)
            if end == len(rest):
                return ReadReply("", tuple(calls))
            after = _NEXT.match(rest, end)
            if after is None:
                raise ValueError(
                    f"After the tool call stands {rest[end : end + 40]!r}; a reply is text, or calls alone."
                )
            at = after.end()

    def certain_text(self, text: str) -> int:
        begun = text.strip()
        return 0 if begun.startswith("{") or MARK.startswith(begun[: len(MARK)]) else len(text)

    def write(self, content: str, calls: Sequence[ToolCall]) -> str:
        """If there are calls, this format has no place for the content."""
        if not calls:
            return content
        return "; ".join(f'{{"name": {json.dumps(c.name)}, "parameters": {c.arguments}}}' for c in calls)
