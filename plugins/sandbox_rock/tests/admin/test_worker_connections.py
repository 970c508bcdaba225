"""Connections to a worker: kept, given up, broken, and closed by either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from yarl import URL

from ale_rock.admin.worker_connections import Connections

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def connections_to(serve: Serve) -> AsyncIterator[Connections]:
    """Connections to a server that does this with each of them."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connections = Connections(URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/below"))
    yield connections
    connections.close()
    server.close()


async def test_a_connection_is_used_again_and_requests_at_once_have_their_own() -> None:
    heads: list[list[bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(of_one := [])
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                of_one.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(4)
                writer.write(b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        writer.close()

    async with connections_to(serve) as connections:
        for _ in range(2):
            asked = (connections.send("POST", "/a?b=c", {"X-Name": "value"}, b"body") for _ in range(3))
            assert await asyncio.gather(*asked) == [(201, b"abc")] * 3
        assert [len(each) for each in heads] == [2, 2, 2]
        assert heads[0][0].startswith(b"POST /below/a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"X-Name: value\r\n" in heads[0][0]
        with pytest.raises(ConnectionError, match="printable"):
            await connections.send("GET", "/", {"X-Name": "a\r\nX-Other: b"}, None)


async def test_one_that_the_worker_closed_is_not_used_again(until: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        writer.close()

    async with connections_to(serve) as connections:
        for _ in range(3):
            assert await connections.send("GET", "/", {}, None) == (200, b"ok")
            await until(lambda: not connections._open)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"no HTTP\r\n\r\n"])
async def test_an_answer_that_breaks_off_is_an_error(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with connections_to(serve) as connections:
        with pytest.raises(ConnectionError):
            await connections.send("GET", "/", {}, None)


async def test_a_request_that_is_given_up_closes_its_connection_and_the_end_of_all_ends_the_others() -> None:
    came, gone = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.release()
        with suppress(ConnectionError):
            await reader.read()
        gone.release()
        writer.close()

    async with connections_to(serve) as connections:
        first, second = (asyncio.create_task(connections.send("GET", "/", {}, None)) for _ in range(2))
        for _ in range(2):
            await came.acquire()
        first.cancel()
        await gone.acquire()
        assert not second.done()
        connections.close()
        with pytest.raises(ConnectionAbortedError):
            await second
        await gone.acquire()
