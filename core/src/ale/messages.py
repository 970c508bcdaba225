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
    """One message. `content` is plain text; parts of other kinds are flattened by the dialect that read them.

    `reasoning` is what a model thought before it said the rest; an agent may send it back or leave it out.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""

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
        if self.reasoning:
            out["reasoning_content"] = self.reasoning
        return out


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
