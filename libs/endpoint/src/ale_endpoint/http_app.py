"""The endpoint over HTTP: the APIs of `dialects`, the models, a count of tokens. What answers is a session,
found by its key: an episode's (`session_server.py`), or one that forwards (`forwarding.py`).

1. The key names the session (`Authorization: Bearer` or `x-api-key`), so one agent cannot speak for another.
2. Errors come in the API's own shape: 4xx where another try will fail too, 5xx and 429 where it may succeed.
3. An agent that hangs up ends its generation, and nothing is recorded; so does the end of its session. A stream begins
   when the answer is there, or, where that takes long, before, with comments that keep the connection alive.
4. Whatever goes wrong ends one request, with a sentence: never the server, and never what was recorded before.
5. A request that cannot be read is reported to the owner of its session (`note_refusal`), and a fault of our own is
   noted in the session (`fault`): an agent that gives up then has not failed its task.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from ale import __version__
from ale.errors import AleError, BudgetExceeded, ContextExceeded, RequestRefused, SessionError, StartDiverged
from ale.messages import ChatReply, ModelCall, ReplyPiece, refuse_constant, whole_characters
from ale.registry.validation import describe_error
from ale.session.partial_replies import Progress
from ale_endpoint.dialects import DIALECTS, AnthropicMessages, ChatCompletions, Dialect, TokenCount
from ale_endpoint.dialects.dialect import encoded
from ale_endpoint.dialects.fields import Server, check_fields
from ale_endpoint.dialects.pictures import Pictures, settle
from ale_endpoint.openapi import document

MAX_BODY_BYTES = 16 << 20
BODY_S = 60.0
"""How long a request's body may take to come."""
PATIENCE_S = 5.0
"""How long a stream's first byte waits for the whole answer, so that a failure can still have its own status."""
ALIVE_S = 10.0
log = logging.getLogger("ale.endpoint")


class HttpError(Exception):
    """A request is answered with an error: an HTTP status, a code, and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    def as_fault(self) -> AleError:
        """The error for the session whose request could not be read."""
        if self.status >= 500:
            return SessionError(self.message)
        return RequestRefused(self.message, self.status, self.code)


class HungUp(Exception):
    """The agent has hung up."""


class ServedSession(Protocol):
    """A session that answers the calls of one agent."""

    id: str
    fault: AleError | None
    """The error of the last call, unless the agent or the budget caused it."""

    async def answer(self, call: ModelCall, /) -> list[ChatReply]:
        """Give as many replies as were asked for. Raises `AleError`."""
        ...

    def count_tokens(self, call: ModelCall, /) -> int:
        """Count the tokens of a call's prompt."""
        ...


@runtime_checkable
class LiveSession(Protocol):
    """A session whose replies are streamed while they are sampled."""

    id: str
    fault: AleError | None

    async def answer(self, call: ModelCall, progress: Progress | None = None, /) -> list[ChatReply]:
        """Give the replies, and before that their pieces to `progress`. Raises `AleError`."""
        ...

    def take_call_id(self) -> str:
        """Return an id for an answer."""
        ...

    def count_tokens(self, call: ModelCall, /) -> int:
        """Count the tokens of a call's prompt."""
        ...


class SessionsByKey(Protocol):
    """The sessions that are served, by their keys."""

    @property
    def models(self) -> Sequence[str]:
        """The names under which models are listed."""
        ...

    @property
    def pictures(self) -> Pictures:
        """What is done with pictures."""
        ...

    @property
    def server(self) -> Server:
        """Who answers: a policy's session, or another server."""
        ...

    def by_key(self, key: str) -> ServedSession | None:
        """The session that a key opens; the key is empty where none was given."""
        ...

    def note_refusal(self, key: str, sent: bytes, refusal: AleError) -> None:
        """Note that a request of this session, with this body, could not be read: it was refused (`RequestRefused`), or
        reading it failed (`SessionError`)."""
        ...


def build_app(endpoint: SessionsByKey) -> Any:
    """The Starlette application."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    def refuse(dialect: Dialect, refused: HttpError) -> JSONResponse:
        headers = {"retry-after": "1"} if refused.status in (429, 503) else None
        body = dialect.error(refused.status, refused.code, refused.message)
        return JSONResponse(body, refused.status, headers)

    def key_of(request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return str(key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", ""))

    def session_of(request: Request) -> ServedSession:
        key = key_of(request)
        found = endpoint.by_key(key)
        if found is None or (
            not key and "origin" in request.headers
        ):  # a web page must not call in the name of its visitor
            raise HttpError(401, "invalid_api_key", "The API key belongs to no open session.")
        return found

    def answering(dialect: Dialect) -> Any:
        async def read(request: Request) -> ModelCall:
            body = b""
            try:
                body = await body_of(request)
                return read_call(dialect, body, endpoint.pictures, endpoint.server)
            except HttpError as refused:
                endpoint.note_refusal(key_of(request), body, refused.as_fault())
                raise

        async def answer(request: Request) -> Response:
            try:
                session = session_of(request)
                call = await read(request)
                if call.stream and isinstance(session, LiveSession):
                    return await stream_live(request, dialect, session, call)
                replying = asyncio.ensure_future(render_reply(dialect, session, call))
                try:
                    if call.stream and not await wait_until_done(request, replying, PATIENCE_S):
                        return StreamingResponse(stream_when_ready(dialect, replying), media_type="text/event-stream")
                    await wait_until_done(request, replying, None)
                except BaseException:
                    replying.cancel()
                    raise
                parts = replying.result()
            except HttpError as refused:
                return refuse(dialect, refused)
            except HungUp:
                return Response(status_code=499)
            if call.stream:
                return StreamingResponse(iter(parts), media_type="text/event-stream")
            return Response(parts[0], media_type="application/json")

        return answer

    async def stream_live(request: Request, dialect: Dialect, session: LiveSession, call: ModelCall) -> Response:
        """Answer with a stream that begins with the first piece of the reply, or after a while with comments."""
        begun = await begin_stream(request, partial(write_live, dialect, session, call))
        return StreamingResponse(stream_parts(dialect, *begun), media_type="text/event-stream")

    async def count_tokens(request: Request) -> Response:
        dialect = TokenCount()
        try:
            session = session_of(request)
            call = read_call(dialect, await body_of(request), "leave_out")
            with as_http_error():
                return JSONResponse({"input_tokens": session.count_tokens(call)})
        except HttpError as refused:
            return refuse(dialect, refused)
        except HungUp:
            return Response(status_code=499)

    async def models(request: Request) -> Response:
        entry = entry_for(request)
        entries = [entry(name) for name in endpoint.models]
        if entry is model_entry:
            return JSONResponse({"object": "list", "data": entries})
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
        return JSONResponse({"data": entries, "has_more": False, "first_id": None, "last_id": None, **ends})

    async def model(request: Request) -> Response:
        return JSONResponse(entry_for(request)(request.path_params["name"]))

    def entry_for(request: Request) -> Callable[[str], dict[str, Any]]:
        asks = "anthropic-version" in request.headers or "x-api-key" in request.headers
        return anthropic_model_entry if asks else model_entry

    async def openapi_document(request: Request) -> Response:
        return JSONResponse(document(__version__))

    async def root(request: Request) -> Response:
        return Response()

    async def not_found(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        dialect = AnthropicMessages() if request.url.path.startswith(AnthropicMessages.path) else ChatCompletions()
        answer = refuse(
            dialect,
            HttpError(error.status_code, "not_found", f"{request.method} {request.url.path}: {error.detail}."),
        )
        answer.headers.update(error.headers or {})
        return answer

    return Starlette(
        routes=[
            *(Route(dialect.path, answering(dialect), methods=["POST"]) for dialect in DIALECTS),
            Route(TokenCount.path, count_tokens, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
            Route("/openapi.json", openapi_document, methods=["GET"]),
            Route("/", root, methods=["GET", "HEAD"]),
        ],
        exception_handlers={HTTPException: not_found},
    )


def model_entry(name: str) -> dict[str, Any]:
    """Describe a model for OpenAI's clients; every name stands for the policy."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "ale"}


def anthropic_model_entry(name: str) -> dict[str, Any]:
    """Describe a model for Anthropic's clients."""
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def read_call(dialect: Dialect, body: bytes, pictures: Pictures = "refuse", server: Server = "session") -> ModelCall:
    """Read the request in a body. Raises `HttpError`."""
    try:
        text = body.decode("utf-8-sig")
        data = json.loads(text, parse_constant=refuse_constant)
        if "\\ud" in text or "\\uD" in text:  # half a character, which agents write where they cut a text
            data = json.loads(whole_characters(json.dumps(data, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise HttpError(400, "invalid_json", f"The request is not valid JSON: {error}.") from error
    return call_of(dialect, data, pictures, server)


def call_of(dialect: Dialect, data: object, pictures: Pictures = "refuse", server: Server = "session") -> ModelCall:
    """Read the request in a JSON value. Raises `HttpError`."""
    if not isinstance(data, dict):
        raise HttpError(400, "invalid_request", "The request must be a JSON object.")
    with as_http_error():
        try:
            carried = check_fields(dialect.fields, data, server)
            return replace(settle(dialect.read(data), pictures, server), passed_on=carried)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, "invalid_request", f"{error}.") from error


async def body_of(request: Any) -> bytes:
    """Read the body, within its limits. Raises `HttpError`, and `HungUp` where the agent leaves before its end."""
    from starlette.requests import ClientDisconnect

    too_large = HttpError(413, "request_too_large", f"The request is larger than {MAX_BODY_BYTES} bytes.")
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
        raise HttpError(408, "timeout", f"The request did not come within {BODY_S:g} s.") from None
    except ClientDisconnect:
        raise HungUp from None
    return bytes(body)


async def render_reply(dialect: Dialect, session: ServedSession, call: ModelCall) -> list[bytes]:
    """Ask for the answer and write it as bytes: the events of a stream, or one JSON object. Raises `HttpError`."""
    with as_http_error(session):
        made = await session.answer(call)
        call_id = f"{session.id}-{made[0].chunk}"
        if call.stream:
            return [event.encode() for event in dialect.events(call, made, call_id)]
        return [encoded(dialect.answer(call, made, call_id))]


@contextmanager
def as_http_error(session: ServedSession | LiveSession | None = None) -> Iterator[None]:
    """Turn errors of ALE into `HttpError`, each with its HTTP status. Other exceptions are faults of the endpoint,
    which the session notes."""
    try:
        yield
    except (HttpError, HungUp):
        raise
    except ContextExceeded as error:
        raise HttpError(400, "context_length_exceeded", str(error)) from error
    except (BudgetExceeded, StartDiverged) as error:
        raise HttpError(400, "episode_ended", str(error)) from error
    except RequestRefused as error:
        raise HttpError(error.status, error.code, str(error)) from error
    except RecursionError as error:
        raise HttpError(400, "invalid_request", str(error)) from error
    except SessionError as error:
        raise HttpError(500, "internal_error", str(error)) from error
    except AleError as error:
        raise HttpError(503 if error.retryable else 500, f"{error.kind}_error", str(error)) from error
    except Exception as error:
        log.exception("a model call failed")
        fault = SessionError(f"The endpoint failed: {describe_error(error)}.")
        if session is not None:
            session.fault = fault
        raise HttpError(500, "internal_error", str(fault)) from error


async def wait_until_done(request: Any, doing: asyncio.Future[Any], timeout_s: float | None) -> bool:
    """Wait, and say whether `doing` ended in time. Raises `HungUp` where the agent hangs up meanwhile."""
    leaving = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait([doing, leaving], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and not doing.done():
            raise HungUp
    finally:
        leaving.cancel()
    return doing.done()


async def wait_for_disconnect(request: Any) -> None:
    """Return when the agent hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


Parts = asyncio.Queue[bytes | None]
"""The parts of an answer that is streamed; None after the last one."""


async def begin_stream(
    request: Any, write: Callable[[Parts], Awaitable[None]]
) -> tuple[asyncio.Future[None], asyncio.Future[bytes | None], Parts]:
    """Begin an answer that `write` puts into a queue, and return it, its first part and the queue: once the first part
    is there, or after a while. Raises what `write` raises before that, and `HungUp`."""
    parts: Parts = asyncio.Queue()
    replying = asyncio.ensure_future(write(parts))
    replying.add_done_callback(lambda _: parts.put_nowait(None))
    first = asyncio.ensure_future(parts.get())
    try:
        await wait_until_done(request, first, PATIENCE_S)
        if first.done() and first.result() is None:
            replying.result()
    except BaseException:
        first.cancel()
        replying.cancel()
        raise
    return replying, first, parts


async def write_live(dialect: Dialect, session: LiveSession, call: ModelCall, parts: Parts) -> None:
    """Write an answer into a queue as its pieces come. Raises `HttpError`."""
    with as_http_error(session):
        writer = dialect.writer(call, session.take_call_id())

        def add(piece: ReplyPiece) -> None:
            for event in writer.add(piece):
                parts.put_nowait(event.encode())

        replies = await session.answer(call, add)
        for event in writer.end(replies):
            parts.put_nowait(event.encode())


async def stream_parts(
    dialect: Dialect, replying: asyncio.Future[None], first: asyncio.Future[bytes | None], parts: Parts
) -> AsyncIterator[bytes]:
    """Stream the parts of an answer until it ends; comments keep the connection alive meanwhile."""
    getting = first
    try:
        while True:
            if not (await asyncio.wait([getting], timeout=ALIVE_S))[0]:
                yield b": the model is at work\n\n"
                continue
            part = getting.result()
            if part is None:
                break
            yield part
            getting = asyncio.ensure_future(parts.get())
        replying.result()
    except HttpError as refused:
        for event in dialect.error_events(refused.status, refused.code, refused.message):
            yield event.encode()
    finally:
        getting.cancel()
        replying.cancel()  # the agent has hung up


async def stream_when_ready(dialect: Dialect, replying: asyncio.Future[list[bytes]]) -> AsyncIterator[bytes]:
    """Stream an answer that is not ready yet; comments keep the connection alive until it is."""
    try:
        while not (await asyncio.wait([replying], timeout=ALIVE_S))[0]:
            yield b": the model is at work\n\n"
        for part in replying.result():
            yield part
    except HttpError as refused:
        for event in dialect.error_events(refused.status, refused.code, refused.message):
            yield event.encode()
    finally:
        replying.cancel()  # the agent has hung up
