"""What the dialects have in common: how each reads a request, and writes an answer, a stream and an error."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ale.messages import ChatReply, ModelCall
from ale_endpoint.dialects.request_models import ApiRequest

PIECE_CHARS = 64
"""How much text one event of a stream carries."""


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
    """JSON in UTF-8. Half a character, which a policy may write into a call's arguments, stays the escape that it was.

    Raises `ValueError` for what JSON does not have (NaN).
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


class Dialect(ABC):
    """One API. It keeps no state."""

    path: ClassVar[str]
    """Where it is called, below the server's root."""
    request: ClassVar[type[ApiRequest]]
    """The model of its request."""

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> ModelCall:
        """Read a request. Raises `ValueError` with a sentence that says what is wrong with it, and where."""

    @abstractmethod
    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        """Write the whole answer; `call_id` is unique in the session."""

    @abstractmethod
    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        """Write the answer as a stream."""

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
