"""The form of Llama 3.1 to 3.3: the reply is the call, a JSON object; several are separated by semicolons.

    {"name": "shell", "parameters": {"command": "ls"}}

A mark for code (`<|python_tag|>`) may stand before it. Content and calls exclude each other: a call after text cannot be
told from prose that holds JSON, and is not read as one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ale.endpoint.tool_formats.reading import call_at
from ale.messages import ToolCall, ToolSpec
from ale.specs.tool_format import FoundCall, ReadReply, ToolFormat

MARK = "<|python_tag|>"
_BEGINS = re.compile(r'\{\s*"(name|type)"\s*:')
_NEXT = re.compile(r"\s*;\s*")


class Llama(ToolFormat):
    """The tool format `llama`."""

    api_version = ">=1.1,<1.3"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> ReadReply:
        """See `ToolFormat.read`. A reply is a call where it begins with the mark, or as the JSON of a call does."""
        said = text.strip()
        if not (said.startswith(MARK) or _BEGINS.match(said)):
            return ReadReply(text)
        said = said.removeprefix(MARK).strip()
        calls: list[FoundCall] = []
        at = 0
        while True:
            call, end = call_at(said, at, "parameters")
            calls.append(call)
            if end == len(said):
                return ReadReply("", tuple(calls))
            after = _NEXT.match(said, end)
            if after is None:
                raise ValueError(
                    f"After the tool call stands {said[end : end + 40]!r}; a reply is text, or calls alone."
                )
            at = after.end()

    def write(self, content: str, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.write`; where there are calls, this form has no place for the content."""
        if not calls:
            return content
        return "; ".join(f'{{"name": {json.dumps(c.name)}, "parameters": {c.arguments}}}' for c in calls)
