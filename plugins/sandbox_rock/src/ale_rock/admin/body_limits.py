"""Bounds on the bodies of requests: how large they may be, and how slowly they may come."""

from __future__ import annotations

import asyncio
import re
import time

from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ale_rock.admin.settings import Settings
from ale_rock.schemas import BAD_REQUEST, ROCK_BASE, Fault, failed

SLOWEST_BYTES_PER_S = 16 << 10


PROXIED = re.compile(rf"{ROCK_BASE}/sandboxes/[^/]+/(?:proxy|vnc)(/|$)")
"""Requests that are passed on to a program in a sandbox piece by piece; their bodies have no bound here."""


class BodyLimitExceeded(Exception):
    """The body of a request is too large or comes too slowly."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class BoundedBodies:
    """An ASGI middleware that bounds bodies. An upload has the bound of files, any other body that of JSON."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or PROXIED.match(scope["path"]):
            await self.app(scope, receive, send)
            return
        path: str = scope["path"]
        is_file = path.endswith(("/upload", "/files", "/tree"))
        limit = self.settings.upload_limit_bytes if is_file else self.settings.body_limit_bytes
        stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not stated.isdigit() or int(stated) > limit:
            await _refuse(path, limit, send)
            return
        began, received, over = time.monotonic(), 0, False

        async def bounded() -> Message:
            nonlocal received, over
            if over:
                return await receive()
            limit_s = began + self.settings.body_timeout_s + received / SLOWEST_BYTES_PER_S - time.monotonic()
            try:
                async with asyncio.timeout(limit_s):
                    message = await receive()
            except TimeoutError:
                raise BodyLimitExceeded("The body of the request comes too slowly.", 408) from None
            received += len(message.get("body", b""))
            over = not message.get("more_body", False)
            if received > limit:
                raise BodyLimitExceeded(_sentence(limit), 413)
            return message

        await self.app(scope, bounded, send)


def _sentence(limit: int) -> str:
    return f"The body of the request is larger than {limit} bytes; send large files with /upload."


async def _refuse(path: str, limit: int, send: Send) -> None:
    if path.startswith(ROCK_BASE):
        status, body = 200, to_json(failed(BAD_REQUEST, _sentence(limit)))
    else:
        status, body = 413, to_json(Fault(detail=_sentence(limit), fault="caller"))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
               (b"connection", b"close")]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
