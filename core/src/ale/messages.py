"""The data types of a conversation: messages, tool calls, tool definitions, model calls and their answers.

The shapes are those of OpenAI chat completions, reduced to what every API dialect can be translated to. They are
slotted dataclasses and not pydantic models because each rollout makes thousands of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
FinishWord = Literal["stop", "length", "tool_calls", "content_filter"]
"""It says why a reply ended, in the words of chat completions."""
ChunkErrorKind = Literal["illegal_call", "execution_failed", "truncated"]
MODEL = "policy"
"""The model's name for an agent that has to give one; every name means the policy."""

_HALF = re.compile("[\ud800-\udfff]")


def read_json(text: str) -> Any:
    """Read JSON as RFC 8259 has it: Python would also read `NaN` and infinities. Raises `ValueError`."""
    return json.loads(text, parse_constant=refuse_constant, parse_float=finite_number)


def whole_characters(text: str) -> str:
    """Return the text with U+FFFD in place of each half of a character (surrogate), which no text can carry."""
    return _HALF.sub("\ufffd", text)


def whole_json(text: str) -> str:
    """Return JSON text without halves of characters, also where they are written as escapes (`\\ud83d`)."""
    if "\\ud" not in text.lower():
        return whole_characters(text)
    with_characters = json.dumps(json.loads(text), ensure_ascii=False)
    whole = whole_characters(with_characters)
    return text if whole == with_characters else whole


def refuse_constant(name: str) -> Any:
    """Refuse `NaN` and infinities, which Python reads and JSON does not have. Raises `ValueError`."""
    raise ValueError(f"{name} is not a number in JSON")


def finite_number(text: str) -> float:
    """Read a number; one that is too large would become an infinity. Raises `ValueError`."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text:.40} is too large")
    return number


_MOST_ITEMS, _MOST_CHARS = 3, 72
"""What `short_repr` shows of one value."""


def short_repr(value: Any) -> str:
    """Return the `repr` of a dataclass or pydantic model on one line: its fields that are not as by default, long texts
    cut, and of long sequences and arrays only how long they are."""
    cls = type(value)
    defaults = {f.name: f.default for f in fields(cls) if f.repr} if is_dataclass(cls) else {
        name: f.default for name, f in cls.model_fields.items() if f.repr
    }  # fmt: skip
    items = ((name, getattr(value, name), default) for name, default in defaults.items())
    shown = (f"{name}={_cut(item)}" for name, item, default in items if not _is_default(item, default))
    return f"{cls.__name__}({', '.join(shown)})"


def _is_default(value: Any, default: Any) -> bool:
    """Return whether a field says nothing: it is as by default, or empty."""
    if isinstance(value, str | bytes | tuple | list | dict | None.__class__):
        return not value or (type(value) is type(default) and bool(value == default))
    return isinstance(value, bool | int | float) and type(value) is type(default) and bool(value == default)


def _cut(value: Any) -> str:
    if (shape := getattr(value, "shape", None)) is not None:
        return f"<{'x'.join(map(str, shape))}>"
    if isinstance(value, tuple | list | set | frozenset | dict) and len(value) > _MOST_ITEMS:
        return f"<{len(value)}>"
    text = repr(value[: 2 * _MOST_CHARS] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 3]}..."


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of the model. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str

    __repr__ = short_repr

    def parsed_arguments(self) -> dict[str, Any]:
        """Return the arguments as an object.

        Raises `ValueError` if the text is not a JSON object.
        """
        value = read_json(self.arguments)
        if not isinstance(value, dict):
            raise ValueError(f"the arguments of '{self.name}' must be a JSON object, not {type(value).__name__}")
        return value


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `content` is plain text; the dialect that reads a message flattens parts of other types into text.

    `reasoning` is what a model thought before its answer; an agent may send it back or leave it out.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""

    __repr__ = short_repr

    def to_openai(self) -> dict[str, Any]:
        """Return this message as a chat-completions object."""
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
    """It describes a tool to the model: `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    __repr__ = short_repr

    def to_openai(self) -> dict[str, Any]:
        """Return this tool as an entry of `tools` in a chat-completions request."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token: its text and its log-probability."""

    text: str
    logprob: float
    data: bytes | None = None
    """Its part of the reply's text in UTF-8, which may be a part of a character. None for a token that is no part of
    the text, such as the one that ends it."""
    likely: tuple[TokenLogprob, ...] = ()
    """The most likely tokens in its place, if another server's model answered and the call asked for them."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The endpoint's answer to one model call.

    `chunk` is the index of the recorded chunk in the session, so that a scaffold can report that the tool call failed
    (`ModelSession.mark_error`). `illegal` is a sentence if the sampled text held a tool call that could not be read;
    `message.content` then holds that text.
    """

    message: Message
    finish_reason: FinishWord
    chunk: int
    prompt_tokens: int
    completion_tokens: int
    illegal: str | None = None
    stop: str | None = None
    """The stop text that ended the reply, if one did."""
    tokens: tuple[TokenLogprob, ...] = ()
    """The sampled tokens with their log-probabilities, if the call asked for them."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class ReplyPiece:
    """A piece of a reply that is not complete yet: its next thoughts or its next text."""

    index: int
    """Of the reply among those that were asked for."""
    prompt_tokens: int
    reasoning: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to the model; it may come from any API."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none` (the answer is not searched for calls), `required`, or the name of a tool. The last two have no
    effect on sampling: the policy would not have sampled a call that it was forced to make."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    stream_usage: bool = False
    """Whether the stream ends with the token usage of the call (chat completions)."""
    logprobs: bool = False
    model: str = MODEL
    custom: frozenset[str] = frozenset()
    """Tools that take text instead of JSON (Responses API); ALE treats them as functions with one argument, `input`."""
    ignored: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the request: they are recorded and have no effect."""
    passed_on: Mapping[str, Any] = field(default_factory=dict)
    """Fields of chat completions for another server to which the call is forwarded; a session does not read them."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a model call: who gave it (a URL, or `replay`), and the usage that this server reported."""

    replies: tuple[ChatReply, ...]
    source: str
    usage: Mapping[str, Any] = field(default_factory=dict)

    __repr__ = short_repr
