"""The endpoint over HTTP on a loopback port, and on a Unix socket where asked: the APIs of `dialects`, the models, a count of tokens.

1. The key names the session (`Authorization: Bearer` or `x-api-key`), so one agent cannot speak for another.
2. Errors come in the API's own shape: 4xx for what will not get better by trying again, 5xx and 429 for what may.
3. An agent that hangs up ends its generation, and nothing is recorded. A stream begins when the answer is there, or, where that
   takes long, before, with comments that keep the connection alive.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from ale.endpoint.dialects import DIALECTS, AnthropicMessages, ChatCompletions, Dialect, ModelCall
from ale.endpoint.dialects.dialect import MODEL
from ale.endpoint.session import EndpointSession, ModelEndpoint
from ale.endpoint.unix_socket import unix_listener
from ale.errors import AleError, BudgetExceeded
from ale.messages import ChatReply

MAX_BODY_BYTES = 16 << 20
BODY_S = 60.0
"""How long a request's body may take to come."""
PATIENCE_S = 5.0
"""How long a stream's first byte waits for the whole answer, so that a failure can still be told by its status."""
ALIVE_S = 10.0


class Refused(Exception):
    """A request that gets no answer: status, code, sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class HungUp(Exception):
    """Nobody waits for the answer any more."""


def build_app(endpoint: ModelEndpoint) -> Any:
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

    def session_of(request: Request) -> EndpointSession:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        found = endpoint.by_key(key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", ""))
        if found is None:
            raise Refused(401, "invalid_api_key", "The API key belongs to no open session.")
        return found

    def answering(dialect: Dialect) -> Any:
        async def answer(request: Request) -> Response:
            try:
                session = session_of(request)
                call = read(dialect, await body_of(request))
                replying = asyncio.ensure_future(replies(session, call))
                try:
                    if call.stream and not await ended(request, replying, PATIENCE_S):
                        return StreamingResponse(late(dialect, session, call, replying), media_type="text/event-stream")
                    await ended(request, replying, None)
                except BaseException:
                    replying.cancel()
                    raise
                made = replying.result()
            except Refused as refused:
                return refuse(dialect, refused)
            except HungUp:
                return Response(status_code=499)
            call_id = f"{session.id}-{made[0].chunk}"
            if call.stream:
                stream = (event.encode() for event in dialect.events(call, made, call_id))
                return StreamingResponse(stream, media_type="text/event-stream")
            return JSONResponse(dialect.answer(call, made, call_id))

        return answer

    async def count_tokens(request: Request) -> Response:
        dialect = AnthropicMessages()
        try:
            session = session_of(request)
            call = read(dialect, await body_of(request))
        except Refused as refused:
            return refuse(dialect, refused)
        return JSONResponse({"input_tokens": session.count_tokens(call)})

    async def models(request: Request) -> Response:
        if "anthropic-version" in request.headers:
            entry = {"type": "model", "id": MODEL, "display_name": MODEL, "created_at": "1970-01-01T00:00:00Z"}
            return JSONResponse({"data": [entry], "has_more": False, "first_id": MODEL, "last_id": MODEL})
        return JSONResponse({"object": "list", "data": [model_entry(MODEL)]})

    async def model(request: Request) -> Response:
        return JSONResponse(model_entry(request.path_params["name"]))

    async def here(request: Request) -> Response:
        return Response()

    async def elsewhere(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        dialect = AnthropicMessages() if request.url.path.startswith(AnthropicMessages.path) else ChatCompletions()
        return refuse(
            dialect, Refused(error.status_code, "not_found", f"{request.method} {request.url.path}: {error.detail}.")
        )

    return Starlette(
        routes=[
            *(Route(dialect.path, answering(dialect), methods=["POST"]) for dialect in DIALECTS),
            Route(f"{AnthropicMessages.path}/count_tokens", count_tokens, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
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
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_json", f"The request is not valid JSON: {error}.") from error
    return call_of(dialect, data)


def call_of(dialect: Dialect, data: object) -> ModelCall:
    """The request that some JSON is. Raises `Refused`."""
    if not isinstance(data, dict):
        raise Refused(400, "invalid_request", "The request must be a JSON object.")
    try:
        return dialect.read(data)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_request", f"{error}.") from error


async def body_of(request: Any) -> bytes:
    """The body, within its limits. Raises `Refused`, and `HungUp` where it does not all come."""
    from starlette.requests import ClientDisconnect

    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise Refused(413, "request_too_large", f"The request is larger than {MAX_BODY_BYTES} bytes.")
    except TimeoutError:
        raise Refused(408, "timeout", f"The request did not come within {BODY_S:g} s.") from None
    except ClientDisconnect:
        raise HungUp from None
    return bytes(body)


async def replies(session: EndpointSession, call: ModelCall) -> list[ChatReply]:
    """What the model answers. Raises `Refused`."""
    try:
        return await session.answer(call)
    except BudgetExceeded as error:
        raise Refused(400, "context_length_exceeded", str(error)) from error
    except AleError as error:
        raise Refused(503 if error.retryable else 500, f"{error.kind}_error", str(error)) from error


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


async def late(
    dialect: Dialect, session: EndpointSession, call: ModelCall, replying: asyncio.Future[list[ChatReply]]
) -> AsyncIterator[bytes]:
    """A stream whose answer is not there yet."""
    try:
        while not (await asyncio.wait([replying], timeout=ALIVE_S))[0]:
            yield b": the model is at work\n\n"
        made = replying.result()
        for event in dialect.events(call, made, f"{session.id}-{made[0].chunk}"):
            yield event.encode()
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
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves signals to the run, which has to clean up more than a server."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    with ExitStack() as sockets:
        # The protocol is named, for asyncio sends small answers at once (TCP_NODELAY) only where it knows it: else 40 ms a call.
        listener = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        listener.bind(("127.0.0.1", 0))
        listeners = [listener] if unix is None else [listener, sockets.enter_context(unix_listener(unix))]
        config = uvicorn.Config(
            build_app(endpoint), log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        server = Server(config)
        task = asyncio.create_task(server.serve(sockets=listeners))
        try:
            while not server.started:
                if task.done():
                    await task
                    raise RuntimeError("the HTTP server ended before it had started")
                await asyncio.sleep(0.01)
            endpoint.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            yield endpoint.base_url
        finally:
            endpoint.base_url = None
            server.should_exit = True
            await asyncio.gather(task, return_exceptions=True)
