"""What the dialects have in common: how each reads a request, and writes an answer, a stream and an error."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ale.messages import ChatReply, ModelCall, ReplyPiece, whole_characters
from ale_endpoint.dialects.fields import Table
from ale_endpoint.dialects.request_models import ApiRequest

PIECE_CHARS = 64
"""How much text one event of a stream carries, where the text is there already."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. `name` is None where the API has events without names."""

    data: Any
    name: str | None = None

    def encode(self) -> bytes:
        """The event as it goes over the wire."""
        data = self.data.encode() if isinstance(self.data, str) else encoded(self.data)
        return (f"event: {self.name}\n" if self.name else "").encode() + b"data: " + data + b"\n\n"


def encoded(value: Any) -> bytes:
    """JSON in UTF-8, with U+FFFD in place of half a character. Raises `ValueError` for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return whole_characters(text).encode()


class StreamWriter(ABC):
    """Writes one answer as a stream: its pieces as they come, if they come, and then the rest of it."""

    def __init__(self, call: ModelCall, call_id: str) -> None:
        self.call, self.call_id = call, call_id

    @abstractmethod
    def add(self, piece: ReplyPiece) -> Iterator[Event]:
        """Write a piece of an answer that is not complete yet."""

    @abstractmethod
    def end(self, replies: Sequence[ChatReply]) -> Iterator[Event]:
        """Write what has not been written of the whole answer, and the stream's end."""


class Dialect(ABC):
    """One API. It keeps no state."""

    path: ClassVar[str]
    """Where it is called, below the server's root."""
    request: ClassVar[type[ApiRequest]]
    """The model of its request."""
    fields: ClassVar[Table]
    """What becomes of each field of a request."""

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> ModelCall:
        """Read a request. Raises `ValueError` with a sentence that says what is wrong with it, and where."""

    @abstractmethod
    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        """Write the whole answer; `call_id` is unique in the session."""

    @abstractmethod
    def writer(self, call: ModelCall, call_id: str) -> StreamWriter:
        """Return what writes an answer as a stream."""

    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        """Write a whole answer as a stream."""
        return self.writer(call, call_id).end(replies)

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        """Write an error's body: OpenAI's, where the API has no other."""
        return openai_error(status, code, message)

    def error_events(self, status: int, code: str, message: str) -> Iterator[Event]:
        """Write an error that comes in the middle of a stream."""
        yield Event(self.error(status, code, message), "error")


def openai_error(status: int, code: str, message: str) -> dict[str, Any]:
    """An error's body in OpenAI's APIs."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def pieces(text: str) -> Iterator[str]:
    """Cut a text into the pieces that a stream carries."""
    for at in range(0, len(text), PIECE_CHARS):
        yield text[at : at + PIECE_CHARS]


def rest_of(text: str, sent: str) -> str:
    """Return what is left to send of a text. The beginning of a text that turns out to hold calls may have been sent
    with white space before it, which the text is without."""
    begun = sent if text.startswith(sent) else sent.lstrip()
    return text[len(begun) :] if text.startswith(begun) else ""
