"""What the worker's routes share: bodies within limits, answers in JSON, and errors as envelopes or faults."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from ale.errors import AleError, ConfigError
from ale_rock.schemas import BAD_REQUEST, SERVICE_ERROR, Fault, RockError, failed
from ale_rock.worker.validation import readable

T = TypeVar("T")


def json_response(value: object, status: int = 200) -> Response:
    """Answer with JSON; pydantic's writer is several times faster than the standard library's."""
    return Response(to_json(value), status, media_type="application/json")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body. Raises `RockError` if it is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise too_large(max_bytes)
    return bytes(body)


def too_large(max_bytes: int) -> RockError:
    """Return the error for a body that is too large."""
    return RockError(f"The request's body is larger than {max_bytes >> 10} KiB; send large files by upload.")


def query(request: Request) -> dict[str, str]:
    """Return the query. Bytes that are not UTF-8, which paths may have, become surrogates."""
    text = request.scope["query_string"].decode("ascii", "replace")
    return dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))


def whole_number(text: str, name: str, most: int) -> int:
    """Return a number of the query. Raises `RockError`."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise RockError(f"{name} must be a number from 0 on, not {text[:100]!r}.")
    return min(int(text), most)


def envelope_of(error: Exception) -> dict[str, Any]:
    """Return the envelope of ROCK that stands for an error."""
    if isinstance(error, ValidationError):
        return failed(BAD_REQUEST, explain(error), message="invalid parameter")
    if isinstance(error, RockError):
        return failed(error.code, readable(error.sentence), exit_code=error.exit_code)
    return failed(BAD_REQUEST if isinstance(error, ConfigError) else SERVICE_ERROR, readable(str(error)))


def fault_of(error: Exception) -> Response:
    """Return the answer of ALE's routes that stands for an error."""
    if isinstance(error, ValidationError):
        return json_response(Fault(detail=explain(error), fault="caller"), 400)
    if isinstance(error, (RockError, ConfigError)):
        return json_response(Fault(detail=readable(str(error)), fault="caller"), 400)
    return json_response(Fault(detail=readable(str(error)), fault="service"), 503)


def explain(error: ValidationError) -> str:
    """Say what is wrong with a request, without its values, which may be secret."""
    wrong = error.errors(include_url=False, include_input=False, include_context=False)[:5]
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'the body'}: {each['msg']}" for each in wrong)


EXPECTED = (ValidationError, RockError, AleError, OSError)
"""Errors that become answers; any other is a fault of this program and becomes HTTP 500."""
