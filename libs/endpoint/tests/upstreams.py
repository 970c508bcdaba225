"""Upstreams for tests: an ALE endpoint with a scripted engine, and a server that has the faults it is told to have."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from served_sessions import ServedSession, ServedSessions
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as Path

from ale.errors import EngineError
from ale.registry.hooks import Hooks
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale_endpoint.server import listener_at, serving

CALL = '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>'
Fault = Callable[[Request], Awaitable[Response]]


class Scripted(Driver, InferenceEngine):
    """Says what it was told to, in turn."""

    max_context = 8192
    version = 0

    def __init__(self) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.texts: list[str] = []
        self.prompts: list[str] = []

    async def load_model(self, folder: object, tokenizer: object) -> None: ...

    async def load_weights(self, policy: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Generation:
        tokenizer = byte_tokenizer()
        self.prompts.append(tokenizer.decode(list(request.token_ids)))
        if not self.texts:
            raise EngineError("The script is at its end.")
        ids = (*tokenizer.encode(self.texts.pop(0)), *tokenizer.stop_token_ids)[: request.sampling.max_tokens]
        stopped = ids[-1] in tokenizer.stop_token_ids
        return Generation(ids, (-0.5,) * len(ids), (0,) * len(ids), "stop" if stopped else "length")


@asynccontextmanager
async def real() -> AsyncIterator[tuple[ServedSession, Scripted]]:
    """An ALE endpoint as the upstream: its session, whose URL and key are the upstream's, and its engine."""
    engine = Scripted()
    endpoint = ServedSessions(byte_tokenizer(), engine, Hooks())
    async with endpoint:
        yield endpoint.open("up", Sampling(max_tokens=4000), max_calls=999, max_context=8192), engine


class Faulty:
    """A server that does what `script` says, call by call, and keeps what it was asked."""

    def __init__(self) -> None:
        self.script: list[Fault] = []
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.keys: list[str | None] = []
        self.url = ""
        self.asked = asyncio.Event()

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Faulty]:
        app = Starlette(routes=[Path("/v1/chat/completions", self._answer, methods=["POST"])])
        with listener_at("127.0.0.1", 0) as listener:
            async with serving(app, listener):
                self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
                yield self

    async def _answer(self, request: Request) -> Response:
        self.bodies.append(json.loads(await request.body()))
        self.asked.set()
        self.times.append(asyncio.get_running_loop().time())
        self.keys.append(request.headers.get("authorization"))
        return await self.script.pop(0)(request)


def says(text: str | None = "hello", **message: Any) -> Fault:
    """A chat completion."""
    made = {"role": "assistant", "content": text, **message}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return sends({"choices": [{"index": 0, "message": made, "finish_reason": "stop"}], "usage": usage})


def sends(body: Any, status: int = 200, **headers: str) -> Fault:
    """JSON."""

    async def answer(request: Request) -> Response:
        return JSONResponse(body, status, {name.replace("_", "-"): value for name, value in headers.items()})

    return answer


def fails(status: int, message: str = "no luck", code: str | None = None, **headers: str) -> Fault:
    """An error in the shape of OpenAI's API."""
    return sends({"error": {"message": message, "code": code}}, status, **headers)


async def garbage(request: Request) -> Response:
    """Half of something."""
    return Response(b'{"choices": [{"mess', media_type="application/json")


async def breaks(request: Request) -> Response:
    """Ends its connection in the middle of the body."""

    async def body() -> AsyncIterator[bytes]:
        yield b'{"choices":'
        raise ConnectionResetError("a fault that the test has asked for")

    return StreamingResponse(body(), media_type="application/json")


async def hangs(request: Request) -> Response:
    """Answers nobody."""
    await asyncio.sleep(30)
    return Response()


class Instant(asyncio.Protocol):
    """A connection of a server that says `hello` at once, and costs next to nothing."""

    made = json.dumps({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        found = re.search(rb"content-length: (\d+).*?\r\n\r\n", self.data, re.DOTALL | re.IGNORECASE)
        if found is not None and len(self.data) >= found.end() + int(found[1]):
            self.data = b""
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(self.made) + self.made)


@asynccontextmanager
async def instant(listener: socket.socket | None = None) -> AsyncIterator[str]:
    """The URL of such a server, at a bound socket if there is one."""
    listener = listener or listener_at("127.0.0.1", 0)
    async with await asyncio.get_running_loop().create_server(Instant, sock=listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
