"""The form of Hermes and of Qwen 2.5 and 3: JSON between tags, any number of calls, after text or without.

    <tool_call>
    {"name": "shell", "arguments": {"command": "ls"}}
    </tool_call>

The JSON says where a call ends, so that its texts may hold the tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ale.endpoint.tool_formats.reading import call_at
from ale.messages import ToolCall, ToolSpec
from ale.specs.tool_format import FoundCall, ReadReply, ToolFormat

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OPENS, _CLOSES = re.compile(re.escape(OPEN) + r"\s*"), re.compile(r"\s*" + re.escape(CLOSE))


class Hermes(ToolFormat):
    """The tool format `hermes`."""

    api_version = ">=1.1,<1.3"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> ReadReply:
        """See `ToolFormat.read`."""
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

    def write(self, content: str, calls: Sequence[ToolCall]) -> str:
        """See `ToolFormat.write`."""
        return content + "".join(
            f'{OPEN}\n{{"name": {json.dumps(c.name)}, "arguments": {c.arguments}}}\n{CLOSE}' for c in calls
        )
