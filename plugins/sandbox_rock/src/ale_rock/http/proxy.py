"""Passes HTTP requests and WebSockets on to another server: from the admin to a worker, and from there to a program in
a sandbox.

1. Bodies go through piece by piece in both directions, so a slow reader holds up the sender and nothing is kept here.
2. Headers that are about one connection are not passed on (RFC 9110, 7.6.1), nor are those that the next server sets.
3. Pages come from untrusted programs. A browser gets them with a policy that keeps them from acting as pages of this
   service (`Content-Security-Policy: sandbox`), though both have the same address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from yarl import URL

from ale_rock.http.disconnects import unless

PIECE_BYTES = 1 << 16
MESSAGE_BYTES = 16 << 20
"""Largest message of a WebSocket."""
CONNECT_S = 10.0
HOP_BY_HOP = frozenset(
    (
        *("connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade"),
    )
)
NEVER_SENT = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the HTTP client would add."""
POLICY = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
TARGET, CREDENTIALS = "x-rock-path", "x-rock-authorization"
"""Headers between admin and worker: path and query of the request, since a path in a URL may be normalized on its way;
and what `Authorization` says to the program, since the worker has its own."""
UNSAID = (1005, 1006, 1015)
"""Close codes of WebSockets that must not be sent (RFC 6455, 7.4.1)."""
Headers = list[tuple[str, str]]
T = TypeVar("T")


class NoAnswer(Exception):
    """The next server did not answer, or answered a WebSocket with the HTTP status `status`."""

    status: int | None = None


def passed_on(headers: Iterable[tuple[bytes, bytes]], without: Collection[str] = ()) -> Headers:
    """Return the headers that are sent to the next server."""
    named = [(name.decode("latin-1").lower(), value.decode("utf-8", "replace")) for name, value in headers]
    of_connection = {word.strip().lower() for name, value in named if name == "connection" for word in value.split(",")}
    dropped = HOP_BY_HOP | of_connection | {"host", *without}
    return [(name, value) for name, value in named if name not in dropped]


async def pass_request_on(request: Request, session: aiohttp.ClientSession, url: URL, headers: Headers) -> Response:
    """Send a request to a URL, and return its answer as a stream. Raises `NoAnswer`."""
    client = _Client(request)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        call = session.request(
            request.method,
            url,
            headers=headers,
            data=client.body() if client.has_body else None,
            allow_redirects=False,
            skip_auto_headers=NEVER_SENT,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )
        try:
            answer = await client.unless_it_leaves(stack.enter_async_context(call))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NoAnswer(type(error).__name__) from None
        return _Passing(answer, client, stack.pop_all())


class _Client:
    """The client of a request: it has sent a body, and may hang up."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.has_body = any(name in request.headers for name in ("content-length", "transfer-encoding"))
        self._read, self._left = asyncio.Event(), asyncio.Event()
        if not self.has_body:
            self._read.set()
        self._watching = asyncio.ensure_future(self._watch())

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        try:
            async for piece in self._request.stream():
                if piece:
                    yield piece
        except ClientDisconnect:
            self._left.set()
            raise
        self._read.set()

    async def _watch(self) -> None:
        await self._read.wait()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._left.set()

    async def unless_it_leaves(self, work: Coroutine[Any, Any, T]) -> T:
        """Await some work; it is cancelled if the client hangs up. Raises `ClientDisconnect`."""
        return await unless(self._left.wait(), work)

    async def close(self) -> None:
        """Stop watching the client."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)


class _Passing(Response):
    """An answer that is passed on piece by piece. Starlette's own streams would read the messages of the request, which
    `_Client` reads here."""

    def __init__(self, answer: aiohttp.ClientResponse, client: _Client, held: AsyncExitStack) -> None:
        super().__init__(None, answer.status)
        self._answer, self._client, self._held = answer, client, held
        kept = [*passed_on(answer.raw_headers), ("content-security-policy", POLICY)]
        self.raw_headers = [(name.encode("latin-1"), value.encode()) for name, value in kept]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            try:
                await self._client.unless_it_leaves(self._send(send))
            except ClientDisconnect:
                return

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._answer.content.iter_chunked(PIECE_BYTES):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def pass_websocket_on(websocket: WebSocket, session: aiohttp.ClientSession, url: URL, headers: Headers) -> None:
    """Connect to a WebSocket's URL, accept the client's, and pass messages on until one side ends. Raises `NoAnswer`
    before anything is accepted."""
    own = [(name, value) for name, value in headers if not name.startswith("sec-websocket-")]
    try:
        far = await session.ws_connect(
            url,
            headers=own,
            protocols=websocket.scope.get("subprotocols", ()),
            max_msg_size=MESSAGE_BYTES,
            autoclose=False,
            timeout=aiohttp.ClientWSTimeout(ws_close=5.0),
        )
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        missing = NoAnswer(type(error).__name__)
        missing.status = getattr(error, "status", None)
        raise missing from None
    async with far:
        await websocket.accept(far.protocol)
        both = [asyncio.ensure_future(_outward(websocket, far)), asyncio.ensure_future(_inward(websocket, far))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)


async def _outward(websocket: WebSocket, far: aiohttp.ClientWebSocketResponse) -> None:
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or 1000
                await far.close(code=1000 if code in UNSAID else code)
                return
            if message.get("bytes") is not None:
                await far.send_bytes(message["bytes"])
            else:
                await far.send_str(message["text"])
    except (aiohttp.ClientError, OSError, RuntimeError):
        await _close(websocket, 1011)


async def _inward(websocket: WebSocket, far: aiohttp.ClientWebSocketResponse) -> None:
    code = 1011
    try:
        async for message in far:
            if message.type == aiohttp.WSMsgType.TEXT:
                await websocket.send_text(message.data)
            elif message.type == aiohttp.WSMsgType.BINARY:
                await websocket.send_bytes(message.data)
        code = far.close_code or 1000
    except (aiohttp.ClientError, OSError, RuntimeError, WebSocketDisconnect):
        pass
    await _close(websocket, 1000 if code in UNSAID else code)


async def _close(websocket: WebSocket, code: int) -> None:
    try:
        await websocket.close(code)
    except (RuntimeError, WebSocketDisconnect):
        return  # the client was faster
