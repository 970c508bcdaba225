"""How tool calls stand in the model's text: the Hermes/Qwen form.

    <tool_call>
    {"name": "shell", "arguments": {"command": "ls"}}
    </tool_call>

Reading never loses text: what cannot be read as calls is returned as content, with a sentence that says why.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ale.messages import Message, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(re.escape(OPEN) + r"\s*(.*?)\s*" + re.escape(CLOSE), re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """An assistant message read from sampled text; `illegal` is a sentence where a call could not be read."""

    message: Message
    illegal: str | None = None


def parse_reply(text: str, call_prefix: str) -> ParsedReply:
    """Read the sampled text of one response (without its stop token).

    Ids of calls are `call_prefix` and a number, so that they are unique in the conversation and reproducible.
    """
    if OPEN not in text:
        return ParsedReply(Message("assistant", text))
    calls: list[ToolCall] = []
    for i, match in enumerate(_BLOCK.finditer(text)):
        try:
            calls.append(_read_call(match.group(1), f"{call_prefix}_{i}"))
        except ValueError as error:
            return ParsedReply(Message("assistant", text), str(error))
    rest = _BLOCK.sub("", text)
    if OPEN in rest:
        return ParsedReply(Message("assistant", text), f"The tool call is not closed with {CLOSE}.")
    return ParsedReply(Message("assistant", rest.strip(), tuple(calls)))


def render_reply(message: Message) -> str:
    """The text that a model would have sampled for `message` (for replies that were not sampled)."""
    calls = "".join(
        f'{OPEN}\n{{"name": {json.dumps(c.name)}, "arguments": {c.arguments}}}\n{CLOSE}' for c in message.tool_calls
    )
    return message.content + calls


def _read_call(block: str, call_id: str) -> ToolCall:
    try:
        data = json.loads(block)
    except ValueError as error:
        raise ValueError(f"The tool call is not valid JSON: {error}.") from error
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise ValueError('A tool call must be an object with "name" and "arguments".')
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ValueError(f"The \"arguments\" of '{data['name']}' must be a JSON object.")
    return ToolCall(call_id, data["name"], json.dumps(arguments, ensure_ascii=False))
