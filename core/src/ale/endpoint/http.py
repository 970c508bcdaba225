"""The endpoint over HTTP: the APIs of `dialects`, the models, a count of tokens. What answers is a `Line` by its key: an episode's
session, on a loopback port of the run and on a Unix socket where asked, or one that forwards (`forwarding.py`).

1. The key names the session (`Authorization: Bearer` or `x-api-key`), so one agent cannot speak for another.
2. Errors come in the API's own shape: 4xx for what will not get better by trying again, 5xx and 429 for what may.
3. An agent that hangs up ends its generation, and nothing is recorded; so does the end of its session. A stream begins when the
   answer is there, or, where that takes long, before, with comments that keep the connection alive.
4. Whatever goes wrong ends one request, with a sentence: never the server, and never what was recorded before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from ale import __version__
from ale.endpoint.dialects import DIALECTS, AnthropicMessages, ChatCompletions, Dialect, ModelCall
from ale.endpoint.dialects.dialect import encoded
from ale.endpoint.openapi import document
from ale.endpoint.server import listener_at, serving
from ale.endpoint.session import ModelEndpoint
from ale.endpoint.unix_socket import unix_listener
from ale.errors import AleError, BudgetExceeded, ContextExceeded, DivergedReplay, RequestRefused
from ale.messages import ChatReply

MAX_BODY_BYTES = 16 << 20
BODY_S = 60.0
"""How long a request's body may take to come."""
PATIENCE_S = 5.0
"""How long a stream's first byte waits for the whole answer, so that a failure can still be told by its status."""
ALIVE_S = 10.0
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
log = logging.getLogger("ale.endpoint")


class Refused(Exception):
    """A request that gets no answer: status, code, sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class HungUp(Exception):
    """Nobody waits for the answer any more."""


class Line(Protocol):
    """What answers the calls of one agent."""

    id: str

    async def answer(self, request: ModelCall) -> list[ChatReply]:
        """As many replies as were asked for. Raises `AleError`."""
        ...

    def count_tokens(self, request: ModelCall) -> int:
        """How many tokens the prompt of a request has."""
        ...


class Lines(Protocol):
    """What is served: lines by their keys."""

    @property
    def models(self) -> Sequence[str]:
        """The names under which models are listed."""
        ...

    def by_key(self, key: str) -> Line | None:
        """The line that a key opens; the key is empty where none was given."""
        ...


def build_app(endpoint: Lines) -> Any:
    """The Starlette application."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    def refuse(dialect: Dialect, refused: Refused) -> JSONResponse:
        headers = {"retry-after": "1"} if refused.status in (429, 503) else None
        body = dialect.error(refused.status, refused.code, refused.message)
        return JSONResponse(body, refused.status, headers)

    def session_of(request: Request) -> Line:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        found = endpoint.by_key(key)
        if found is None or (not key and "origin" in request.headers):  # a web page may not speak for who looks at it
            raise Refused(401, "invalid_api_key", "The API key belongs to no open session.")
        return found

    def answering(dialect: Dialect) -> Any:
        async def answer(request: Request) -> Response:
            try:
                session = session_of(request)
                call = read(dialect, await body_of(request))
                replying = asyncio.ensure_future(said(dialect, session, call))
                try:
                    if call.stream and not await ended(request, replying, PATIENCE_S):
                        return StreamingResponse(late(dialect, replying), media_type="text/event-stream")
                    await ended(request, replying, None)
                except BaseException:
                    replying.cancel()
                    raise
                parts = replying.result()
            except Refused as refused:
                return refuse(dialect, refused)
            except HungUp:
                return Response(status_code=499)
            if call.stream:
                return StreamingResponse(iter(parts), media_type="text/event-stream")
            return Response(parts[0], media_type="application/json")

        return answer

    async def count_tokens(request: Request) -> Response:
        dialect = AnthropicMessages()
        try:
            session = session_of(request)
            call = read(dialect, await body_of(request))
            with told():
                return JSONResponse({"input_tokens": session.count_tokens(call)})
        except Refused as refused:
            return refuse(dialect, refused)
        except HungUp:
            return Response(status_code=499)

    async def models(request: Request) -> Response:
        if "anthropic-version" in request.headers:
            born = {"type": "model", "created_at": "1970-01-01T00:00:00Z"}
            entries = [{**born, "id": name, "display_name": name} for name in endpoint.models]
            ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
            return JSONResponse({"data": entries, "has_more": False, "first_id": None, "last_id": None, **ends})
        return JSONResponse({"object": "list", "data": [model_entry(name) for name in endpoint.models]})

    async def model(request: Request) -> Response:
        return JSONResponse(model_entry(request.path_params["name"]))

    async def described(request: Request) -> Response:
        return JSONResponse(document(__version__))

    async def here(request: Request) -> Response:
        return Response()

    async def elsewhere(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        dialect = AnthropicMessages() if request.url.path.startswith(AnthropicMessages.path) else ChatCompletions()
        answer = refuse(
            dialect, Refused(error.status_code, "not_found", f"{request.method} {request.url.path}: {error.detail}.")
        )
        answer.headers.update(error.headers or {})
        return answer

    return Starlette(
        routes=[
            *(Route(dialect.path, answering(dialect), methods=["POST"]) for dialect in DIALECTS),
            Route(f"{AnthropicMessages.path}/count_tokens", count_tokens, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
            Route("/openapi.json", described, methods=["GET"]),
            Route("/", here, methods=["GET", "HEAD"]),
        ],
        exception_handlers={HTTPException: elsewhere},
    )


def model_entry(name: str) -> dict[str, Any]:
    """A model as OpenAI's clients see it; every name is the policy's."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "ale"}


def read(dialect: Dialect, body: bytes) -> ModelCall:
    """The request in a body. Raises `Refused`."""
    try:
        text = body.decode("utf-8-sig")
        data = json.loads(text, parse_constant=no_number)
        if "\\ud" in text or "\\uD" in text:  # half a character, as agents make them where they cut a text
            data = json.loads(LONE_SURROGATE.sub("\ufffd", json.dumps(data, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_json", f"The request is not valid JSON: {error}.") from error
    return call_of(dialect, data)


def call_of(dialect: Dialect, data: object) -> ModelCall:
    """The request that some JSON is. Raises `Refused`."""
    if not isinstance(data, dict):
        raise Refused(400, "invalid_request", "The request must be a JSON object.")
    with told():
        try:
            return dialect.read(data)
        except (ValueError, RecursionError) as error:
            raise Refused(400, "invalid_request", f"{error}.") from error


def no_number(name: str) -> Any:
    """Refuses `NaN` and its like, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is no number of JSON")


async def body_of(request: Any) -> bytes:
    """The body, within its limits. Raises `Refused`, and `HungUp` where it does not all come."""
    from starlette.requests import ClientDisconnect

    too_large = Refused(413, "request_too_large", f"The request is larger than {MAX_BODY_BYTES} bytes.")
    if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError:
        raise Refused(408, "timeout", f"The request did not come within {BODY_S:g} s.") from None
    except ClientDisconnect:
        raise HungUp from None
    return bytes(body)


async def said(dialect: Dialect, session: Line, call: ModelCall) -> list[bytes]:
    """What the model answers, as it goes over the wire: the events of a stream, or one whole. Raises `Refused`."""
    with told():
        made = await session.answer(call)
        call_id = f"{session.id}-{made[0].chunk}"
        if call.stream:
            return [event.encode() for event in dialect.events(call, made, call_id)]
        return [encoded(dialect.answer(call, made, call_id))]


@contextmanager
def told() -> Iterator[None]:
    """Makes whatever goes wrong a `Refused`."""
    try:
        yield
    except Refused:
        raise
    except ContextExceeded as error:
        raise Refused(400, "context_length_exceeded", str(error)) from error
    except (BudgetExceeded, DivergedReplay) as error:
        raise Refused(400, "episode_ended", str(error)) from error
    except RequestRefused as error:
        raise Refused(error.status, error.code, str(error)) from error
    except RecursionError as error:
        raise Refused(400, "invalid_request", str(error)) from error
    except AleError as error:
        raise Refused(503 if error.retryable else 500, f"{error.kind}_error", str(error)) from error
    except Exception as error:
        log.exception("a model call failed")
        raise Refused(500, "internal_error", f"The call failed: {type(error).__name__}: {error}.") from error


async def ended(request: Any, doing: asyncio.Future[Any], timeout_s: float | None) -> bool:
    """Whether something has ended in time. Raises `HungUp` where the agent has gone meanwhile."""
    leaving = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait([doing, leaving], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and not doing.done():
            raise HungUp
    finally:
        leaving.cancel()
    return doing.done()


async def gone(request: Any) -> None:
    """Returns when the agent hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def late(dialect: Dialect, replying: asyncio.Future[list[bytes]]) -> AsyncIterator[bytes]:
    """A stream whose answer is not there yet."""
    try:
        while not (await asyncio.wait([replying], timeout=ALIVE_S))[0]:
            yield b": the model is at work\n\n"
        for part in replying.result():
            yield part
    except Refused as refused:
        for event in dialect.error_events(refused.status, refused.code, refused.message):
            yield event.encode()
    finally:
        replying.cancel()  # the agent has hung up


@asynccontextmanager
async def serve(endpoint: ModelEndpoint, unix: Path | None = None) -> AsyncIterator[str]:
    """Serve on a free loopback port while the context lasts; yields the base URL and sets `endpoint.base_url`.

    With `unix` the same is served at that Unix socket too (see `unix_socket.py`). Raises `ConfigError` where it cannot be had.
    """
    with ExitStack() as sockets:
        listener = sockets.enter_context(listener_at("127.0.0.1", 0))
        listeners = [listener] if unix is None else [listener, sockets.enter_context(unix_listener(unix))]
        async with serving(build_app(endpoint), *listeners):
            endpoint.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            try:
                yield endpoint.base_url
            finally:
                endpoint.base_url = None
