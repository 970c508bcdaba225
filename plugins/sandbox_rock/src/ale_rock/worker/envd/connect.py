"""The Connect protocol as E2B's SDKs speak it: JSON, without compression.

A unary call is a POST of a JSON object. The messages of a stream are frames: a byte of flags, the length (u32, big
endian) and the JSON; the last frame of an answer has the flag `LAST` and holds the error, if there is one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from ale_rock.schemas import RockError
from ale_rock.worker.responses import read_body
from ale_rock.worker.validation import readable

UNARY, STREAM = "application/json", "application/connect+json"
HEAD_BYTES, LAST = 5, 2
STATUS = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "out_of_range": 400,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "resource_exhausted": 429,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
"""The HTTP status of a unary call that fails, by the error's code."""


class ConnectError(Exception):
    """A call that fails, with a code of the protocol and a sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code, self.sentence = code, readable(sentence)

    def body(self) -> dict[str, str]:
        """Return the error as the protocol writes it."""
        return {"code": self.code, "message": self.sentence}

    def response(self) -> Response:
        """Return the answer to a unary call."""
        return Response(to_json(self.body()), STATUS.get(self.code, 500), media_type=UNARY)


def check_codec(request: Request, expected: str) -> None:
    """Refuse a request that is not JSON. Raises `ConnectError`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("connect-content-encoding") or request.headers.get("content-encoding")
    if kind != expected or encoding not in (None, "identity"):
        raise ConnectError(
            "unimplemented",
            f"This service reads calls as {expected} without compression, as E2B's SDKs send them, and not "
            f"{kind or 'a body without a type'!r} ({encoding or 'no'} compression).",
        )


async def read_unary(request: Request, max_bytes: int) -> dict[str, Any]:
    """Return the message of a unary call. Raises `ConnectError`."""
    check_codec(request, UNARY)
    return parse(await _bounded(request, max_bytes))


async def read_one(request: Request, max_bytes: int) -> dict[str, Any]:
    """Return the one message of a call whose answer is a stream. Raises `ConnectError`."""
    check_codec(request, STREAM)
    body = await _bounded(request, max_bytes)
    if len(body) < HEAD_BYTES or body[0] != 0 or len(body) != HEAD_BYTES + int.from_bytes(body[1:HEAD_BYTES], "big"):
        raise ConnectError("invalid_argument", "The body of this call is not one frame of the Connect protocol.")
    return parse(body[HEAD_BYTES:])


async def read_messages(request: Request, max_bytes: int) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the messages of a call whose request is a stream. Raises `ConnectError`."""
    check_codec(request, STREAM)
    buffer = bytearray()
    async for piece in request.stream():
        buffer += piece
        while len(buffer) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(buffer[1:HEAD_BYTES], "big")
            if end > max_bytes:
                raise ConnectError("resource_exhausted", f"A message of this call is larger than {max_bytes} bytes.")
            if len(buffer) < end:
                break
            flags, data = buffer[0], bytes(buffer[HEAD_BYTES:end])
            del buffer[:end]
            if flags & LAST:
                return
            yield parse(data)
    if buffer:
        raise ConnectError("invalid_argument", "The last message of this call is cut short.")


async def _bounded(request: Request, max_bytes: int) -> bytes:
    try:
        return await read_body(request, max_bytes)
    except RockError as error:
        raise ConnectError("resource_exhausted", error.sentence) from None


def parse(data: bytes) -> dict[str, Any]:
    """Return the object that a message holds. Raises `ConnectError`."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ConnectError("invalid_argument", "A message of this call is no JSON object.")
    return message


def unary(message: object) -> Response:
    """Return the answer to a unary call."""
    return Response(to_json(message), media_type=UNARY)


def message_frame(message: object) -> bytes:
    """Return a frame with a message."""
    return _frame(0, to_json(message))


def last_frame(error: ConnectError | None = None) -> bytes:
    """Return the frame that ends an answer."""
    return _frame(LAST, to_json({} if error is None else {"error": error.body()}))


def _frame(flags: int, data: bytes) -> bytes:
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


async def failed_stream(error: ConnectError) -> AsyncIterator[bytes]:
    """Yield the answer to a call with a streamed answer that fails at once."""
    yield last_frame(error)
