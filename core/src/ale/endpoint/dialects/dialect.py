"""What the dialects have in common: the internal request, and what each translates."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ale.messages import ChatReply, Message, ToolSpec

MODEL = "policy"
"""What the model is called where an agent has no name for it; every name is the policy's."""
MOST_CHOICES = 32
PIECE_CHARS = 64
"""How much text one event of a stream carries."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to the model, whatever API it came by."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none` (no calls are read out of the answer), `required`, or the name of a tool. The last two are told to nobody:
    a policy is not forced to call, for what it would be forced to say it did not sample."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    stream_usage: bool = False
    """Whether the stream ends with what the call has used (chat completions)."""
    logprobs: bool = False
    model: str = MODEL
    custom: frozenset[str] = frozenset()
    """Tools that take a text instead of JSON (Responses); here they are functions with one argument, `input`."""
    ignored: Mapping[str, Any] = field(default_factory=dict)
    """What else was asked for: kept in the record, and nothing more."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. `name` is None where the API has events without names."""

    data: Any
    name: str | None = None

    def encode(self) -> bytes:
        """As it goes over the wire."""
        data = self.data.encode() if isinstance(self.data, str) else encoded(self.data)
        return (f"event: {self.name}\n" if self.name else "").encode() + b"data: " + data + b"\n\n"


def encoded(value: Any) -> bytes:
    """JSON in UTF-8. Half a character, which a policy may write into a call's arguments, stays the escape that it was.

    Raises `ValueError` for what JSON does not have (NaN).
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


class Dialect(ABC):
    """One API. Stateless."""

    path: ClassVar[str]
    """Where it is called, below the server's root."""

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> ModelCall:
        """The request. Raises `ValueError` with a sentence that says what is wrong with it, and where."""

    @abstractmethod
    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        """The whole answer; `call_id` is unique in the session."""

    @abstractmethod
    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        """The answer as a stream."""

    @abstractmethod
    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        """An error's body. `code` is one of those of `ERRORS`."""

    def error_events(self, status: int, code: str, message: str) -> Iterator[Event]:
        """An error in the middle of a stream."""
        yield Event(self.error(status, code, message), "error")


# --- what reading needs


def common(body: Mapping[str, Any], read: Collection[str]) -> dict[str, Any]:
    """The fields of `ModelCall` that every API has under the same names; `read` are the keys that the API's own code reads."""
    return {
        "stream": bool(optional(body, "stream", bool, "true or false")),
        "model": optional(body, "model", str, "a text") or MODEL,
        "ignored": {key: value for key, value in body.items() if key not in read and key not in ("stream", "model")},
    }


def named(name: Any, names: Collection[str]) -> str:
    """The tool that a `tool_choice` names. Raises `ValueError` where there is none of that name."""
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"'tool_choice' names {name!r}, which is none of the tools")
    return name


def arguments_text(given: Any) -> str:
    """The arguments of a call as JSON text, which they may be already."""
    return given if isinstance(given, str) else json.dumps({} if given is None else given, ensure_ascii=False)


def openai_error(status: int, code: str, message: str) -> dict[str, Any]:
    """An error's body in OpenAI's APIs."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def listed(body: Mapping[str, Any], key: str) -> list[Any]:
    """A list of the request; empty where it is absent or null."""
    value = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"'{key}' must be a list, not {kind_of(value)}")
    return value


def optional(body: Mapping[str, Any], key: str, kind: type | tuple[type, ...], what: str) -> Any:
    """A value of a kind, or None."""
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"'{key}' must be {what}, not {kind_of(value)}")
    return value


def positive(body: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these that is there: a whole number above 0, or None. The others must be such numbers too."""
    found: list[int] = []
    for key in keys:
        value = optional(body, key, (int, float), "a whole number")
        if value is None:
            continue
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(f"'{key}' must be a whole number, not {value}")
        if value < 1:
            raise ValueError(f"'{key}' must be at least 1, not {value}")
        found.append(int(value))
    return found[0] if found else None


def text_of(body: Mapping[str, Any], key: str, where: str) -> str:
    """A text; empty where it is absent or null."""
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}.{key} must be a text, not {kind_of(value)}")
    return value or ""


def texts(value: Any, key: str) -> tuple[str, ...]:
    """A text, or a list of texts."""
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"'{key}' must be a text or a list of texts")
    return tuple(text for text in found if text)


def schema(value: Any, where: str) -> Mapping[str, Any]:
    """A tool's parameters: a JSON Schema of an object."""
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a JSON Schema object, not {kind_of(value)}")
    properties = value.get("properties")
    if properties is not None and not isinstance(properties, Mapping):
        raise ValueError(f"{where}.properties must be an object, not {kind_of(properties)}")
    return {"type": "object", "properties": {}, **value} | {"properties": properties or {}}


def part_text(part: Any, where: str) -> str:
    """The text of one part of a content; of all APIs, since agents mix them. Raises `ValueError` for pictures and sound."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return str(part[key])
        raise ValueError(f"{where} is a part of type {part.get('type')!r}; only text is supported")
    raise ValueError(f"{where} must be text or an object, not {kind_of(part)}")


def content_text(content: Any, where: str) -> str:
    """A content that is a text, null, or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part_text(part, f"{where}[{i}]") for i, part in enumerate(content))
    raise ValueError(f"{where} must be text or a list of parts, not {kind_of(content)}")


def kind_of(value: Any) -> str:
    """What a JSON value is, in a word."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def pieces(text: str) -> Iterator[str]:
    """A text as a stream carries it."""
    for at in range(0, len(text), PIECE_CHARS):
        yield text[at : at + PIECE_CHARS]
