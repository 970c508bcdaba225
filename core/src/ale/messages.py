"""What travels in a conversation: messages, tool calls, tool definitions.

The shapes are those of OpenAI chat completions, reduced to what every dialect can be translated to.
They are slotted dataclasses and not pydantic models because each rollout makes thousands of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
FinishWord = Literal["stop", "length", "tool_calls"]
"""Why a reply ended, in the words of chat completions."""
ChunkErrorKind = Literal["illegal_call", "execution_failed", "truncated"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model asked for. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str

    def parsed_arguments(self) -> dict[str, Any]:
        """The arguments as an object.

        Raises `ValueError` where the text is not a JSON object.
        """
        value = json.loads(self.arguments)
        if not isinstance(value, dict):
            raise ValueError(f"the arguments of '{self.name}' must be a JSON object, not {type(value).__name__}")
        return value


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `content` is plain text; parts of other kinds are flattened by the dialect that read them."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """This message as a chat-completions object."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out

    @classmethod
    def from_openai(cls, data: Mapping[str, Any]) -> Message:
        """Read a chat-completions object; content may be a string, null, or a list of text parts.

        Raises `ValueError` with a sentence where the object is not a message.
        """
        role = data.get("role")
        if role == "developer":
            role = "system"
        if role not in ("system", "user", "assistant", "tool"):
            raise ValueError(f"a message has the role {role!r}; known roles are system, user, assistant and tool")
        calls = []
        for raw in data.get("tool_calls") or ():
            function = raw.get("function") if isinstance(raw, Mapping) else None
            if not isinstance(function, Mapping) or "name" not in function:
                raise ValueError("a tool call needs 'function' with a 'name' and 'arguments'")
            arguments = function.get("arguments", "{}")
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments)
            calls.append(ToolCall(str(raw.get("id", "")), str(function["name"]), arguments))
        call_id = data.get("tool_call_id")
        return cls(role, _text(data.get("content")), tuple(calls), None if call_id is None else str(call_id))


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, str):
                parts.append(part)
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                parts.append(part["text"])
            else:
                raise ValueError("a message's content holds a part that is not text; only text is supported")
        return "".join(parts)
    raise ValueError(f"a message's content must be text or a list of text parts, not {type(content).__name__}")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it: `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def to_openai(self) -> dict[str, Any]:
        """This tool as an entry of a chat-completions request's `tools`."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What the endpoint answers to one model call.

    `chunk` is the index of the recorded chunk in the session, so that a scaffold that sees the call fail can
    say so (`ModelSession.mark_error`). `illegal` is a sentence where the sampled text held a tool call that
    could not be read; the text then stands in `message.content`.
    """

    message: Message
    finish_reason: FinishWord
    chunk: int
    prompt_tokens: int
    completion_tokens: int
    illegal: str | None = None
    stop: str | None = None
    """The stop text that ended it, where one did."""
    tokens: tuple[tuple[str, float], ...] = ()
    """Each sampled token's text and log-probability, where they were asked for."""
