"""The endpoint over HTTP: the APIs of `dialects`, the models, a count of tokens. What answers is a `Line` by its key: an episode's
session on a loopback port of the run, or one that forwards (`forwarding.py`).

1. The key names the session (`Authorization: Bearer` or `x-api-key`), so one agent cannot speak for another.
2. Errors come in the API's own shape: 4xx for what will not get better by trying again, 5xx and 429 for what may.
3. An agent that hangs up ends its generation, and nothing is recorded. A stream begins when the answer is there, or, where that
   takes long, before, with comments that keep the connection alive.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from ale.endpoint.dialects import DIALECTS, AnthropicMessages, ChatCompletions, Dialect, ModelCall
from ale.endpoint.session import ModelEndpoint
from ale.errors import AleError, BudgetExceeded, RequestRefused
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
            born = {"type": "model", "created_at": "1970-01-01T00:00:00Z"}
            entries = [{**born, "id": name, "display_name": name} for name in endpoint.models]
            ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
            return JSONResponse({"data": entries, "has_more": False, "first_id": None, "last_id": None, **ends})
        return JSONResponse({"object": "list", "data": [model_entry(name) for name in endpoint.models]})

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


async def replies(session: Line, call: ModelCall) -> list[ChatReply]:
    """What the model answers. Raises `Refused`."""
    try:
        return await session.answer(call)
    except BudgetExceeded as error:
        raise Refused(400, "context_length_exceeded", str(error)) from error
    except RequestRefused as error:
        raise Refused(error.status, error.code, str(error)) from error
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
    dialect: Dialect, session: Line, call: ModelCall, replying: asyncio.Future[list[ChatReply]]
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
async def serve(endpoint: ModelEndpoint) -> AsyncIterator[str]:
    """Serve on a free loopback port while the context lasts; yields the base URL and sets `endpoint.base_url`."""
    with listener_at("127.0.0.1", 0) as listener:
        async with serving(build_app(endpoint), listener):
            endpoint.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            try:
                yield endpoint.base_url
            finally:
                endpoint.base_url = None


def listener_at(host: str, port: int) -> socket.socket:
    """A socket that is bound; port 0: a free one. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
    )[0]
    # The protocol is named, for asyncio sends small answers at once (TCP_NODELAY) only where it knows it: else 40 ms a call.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


@asynccontextmanager
async def serving(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    """Serve an application at a bound socket while the context lasts; what is not answered a second after it is cut off."""
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves signals to the run, which has to clean up more than a server."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                await task
                raise RuntimeError("the HTTP server ended before it had started")
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
