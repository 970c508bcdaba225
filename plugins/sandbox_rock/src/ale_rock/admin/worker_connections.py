"""Connections to a worker for requests whose answer is read whole: those of the protocol, and commands.

1. A connection carries one request at a time, and then waits for the next; the one that was used last is used first.
2. A request that is given up, because its time is over or its caller has left, closes its connection, which ends the
   request at the worker, too.
3. Streams go through aiohttp (`Worker.request`), which takes four times as long for a small request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import cast

from httptools import HttpParserError, HttpResponseParser
from yarl import URL

CONNECT_S = 5.0
IDLE_S = 30.0
"""Seconds after which an idle connection is not used again: the worker may close it just as a request is sent."""
Answer = tuple[int, bytes]
"""Status and body."""


class Connections:
    """The connections to one worker."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._host, self._path = url.raw_authority.rpartition("@")[2], url.raw_path.rstrip("/")
        self._idle: dict[_Connection, float] = {}
        """The time since which each is idle, the latest last."""
        self._open: set[_Connection] = set()

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Send a request, whose path comes after the URL's, and return its answer. Raises `OSError`, and `TimeoutError`
        if nobody takes the connection."""
        fields = {"Host": self._host, **headers, "Content-Length": str(len(body or b""))}
        lines = [f"{method} {self._path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        if not all(map(str.isprintable, lines)):
            raise ConnectionError("a request may not hold what is not printable")
        request = "\r\n".join([*lines, "", ""]).encode() + (body or b"")
        connection = self._take_idle() or await self._connect()
        try:
            answer = await connection.send(request)
        except BaseException:
            connection.close()
            raise
        if connection.is_kept:
            self._idle[connection] = time.monotonic()
        else:
            connection.close()
        return answer

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection, since = self._idle.popitem()
            if time.monotonic() - since < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        url, loop = self._url, asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: _Connection(self._forget), url.host or "", url.port or 80, ssl=url.scheme == "https" or None
            )
        self._open.add(connection)
        return connection

    def _forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def close(self) -> None:
        """Close all, which ends every request."""
        for connection in list(self._open):
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection; `ended` is called when either side closes it."""

    def __init__(self, ended: Callable[[_Connection], None]) -> None:
        self._ended = ended
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._body: list[bytes] = []
        self.is_kept = False

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request."""
        self._answer, self._body = asyncio.get_running_loop().create_future(), []
        if self._transport.is_closing():
            self._fail(ConnectionResetError("closed"))
        else:
            self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Hang up."""
        self._ended(self)
        self._transport.abort()
        self._fail(ConnectionAbortedError("closed"))

    def _fail(self, error: OSError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(self)
        self._fail(ConnectionResetError("hung up"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():  # nothing was asked for
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._fail(ConnectionError("no HTTP"))
            self.close()

    # --- what the parser calls

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.is_kept = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._body)))
