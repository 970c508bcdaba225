"""Work for a client that is cancelled when the client hangs up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
PATIENCE_S = 300.0
"""How long ROCK's client waits for the next bytes of an answer if its request names no time."""
LEAST_PAUSE_S, LATE_S = 0.05, 30.0


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await some work for a request whose body has been read. It is cancelled if the client hangs up. Raises
    `ClientDisconnect`."""
    return await unless(_hang_up(request), work)


async def unless(leave: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T:
    """Await some work. It is cancelled when `leave` ends, which means that the client hung up. Raises
    `ClientDisconnect`."""
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave)
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        leaving.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the rest of the body


class ClosingStream(StreamingResponse):
    """A response that ends what it streams when the client hangs up, also while it waits for the client to read."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], **options: Any) -> None:
        super().__init__(pieces, **options)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            await super().__call__(scope, receive, send)


class PatientAnswer(Response):
    """The answer of some work, in JSON, for a client that gives up when it receives nothing for `timeout_s`. The work
    may take that time, too. Until it is done the client is sent spaces, which JSON allows before a value; they end once
    the work is `LATE_S` late. The work must not raise."""

    def __init__(self, work: Coroutine[Any, Any, Response], timeout_s: float) -> None:
        super().__init__(media_type="application/json")
        del self.headers["content-length"]
        self._work, self._timeout_s = work, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pause_s, until = max(LEAST_PAUSE_S, min(self._timeout_s, PATIENCE_S) / 3), time.monotonic() + self._timeout_s
        doing = asyncio.ensure_future(while_connected(Request(scope, receive), self._work))
        try:
            await asyncio.wait((doing,), timeout=pause_s)
            if doing.done():
                await doing.result()(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while not doing.done():
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                await asyncio.wait((doing,), timeout=pause_s if time.monotonic() < until + LATE_S else None)
            await send({"type": "http.response.body", "body": doing.result().body})
        except ClientDisconnect:
            return
        finally:
            doing.cancel()
