"""What the tests of bad requests share: they send a session any bytes, and look at how it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from served_sessions import ServedSession

PATHS = ["chat/completions", "responses", "messages"]
USER = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {path: {"input" if path == "responses" else "messages": USER} for path in PATHS}
every_api = pytest.mark.parametrize("path", PATHS)


async def post(session: ServedSession, path: str, content: bytes | None = None, **headers: str) -> httpx.Response:
    body = json.dumps(ASKED[path]).encode() if content is None else content
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        headers = {"x-api-key": session.api_key, **headers}
        return await client.post(f"{session.base_url}/{path}", content=body, headers=headers)


@asynccontextmanager
async def connection(session: ServedSession) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = httpx.URL(session.base_url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def head(session: ServedSession, *lines: str, path: str = "chat/completions") -> bytes:
    begun = [f"POST /v1/{path} HTTP/1.1", "host: x", f"x-api-key: {session.api_key}", *lines]
    return "\r\n".join([*begun, "", ""]).encode()


async def answered(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and body of an answer, within a minute."""
    async with asyncio.timeout(60):
        said = await reader.readuntil(b"\r\n\r\n")
        lines = said.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
        return int(said.split()[1]), json.loads(await reader.readexactly(length))


async def ends(reader: asyncio.StreamReader, within_s: float = 60) -> None:
    """The server closes the connection."""
    with suppress(ConnectionError):
        async with asyncio.timeout(within_s):
            while await reader.read(1 << 16):
                continue


def refused(answer: httpx.Response, status: int, path: str, sentence: str = "") -> None:
    """In the API's own shape."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    body = answer.json()
    assert (body.get("type") == "error") == (path == "messages")
    assert set(body["error"]) == ({"type", "message"} if path == "messages" else {"message", "type", "param", "code"})
    assert sentence in body["error"]["message"]
