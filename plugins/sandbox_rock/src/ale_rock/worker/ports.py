"""Connections to programs that listen in one sandbox: what HTTP needs, and single TCP connections over a WebSocket.

A sandbox's network is its own, so its ports cannot be reached from here; its resident connects to them. For HTTP each
port gets a Unix socket in a folder that only this user may enter, and behind it a connection through the resident. At
most `MOST_PORTS` have one; the port that was unused for longest loses its socket to a new one.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import aiohttp
from starlette.websockets import WebSocket, WebSocketDisconnect

from ale.errors import SandboxError
from ale.specs.sandbox import Sandbox
from ale_rock.schemas import RockError
from ale_sandbox.host.port_connection import PortConnection
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

MOST_PORTS = 64
FAREWELL_S = 5.0
"""How long a program may take to end a connection after the other side has."""


class SandboxPorts:
    """The ports of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._open: dict[int, tuple[asyncio.Server, aiohttp.ClientSession]] = {}
        """Ordered by use, the latest last."""
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_use: Counter[int] = Counter()
        """How many connections of HTTP each port has."""
        self._closed = False

    def _resident(self) -> ResidentSandbox:
        if not isinstance(self._sandbox, ResidentSandbox):
            raise RockError("The worker's provider has no way to the ports of its sandboxes.")
        if self._closed:
            raise SandboxError("The sandbox is stopped.")
        return self._sandbox

    async def connect(self, port: int) -> PortConnection:
        """Connect to a port. Raises `RockError`, `SandboxError` or `OSError`."""
        return await self._resident().connect(port)

    async def session(self, port: int) -> aiohttp.ClientSession:
        """Return an HTTP client whose every connection goes to this port. Raises `RockError`, `SandboxError` or
        `OSError`."""
        async with self._opening:
            self._resident()
            if port in self._open:
                self._open[port] = self._open.pop(port)
            else:
                if len(self._open) >= MOST_PORTS:
                    await self._give_up_one()
                if self._folder is None:
                    self._folder = tempfile.TemporaryDirectory(prefix="ale-rock-ports-")
                path = str(self._socket(port))

                async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    await self._bridge(port, reader, writer)

                server = await asyncio.start_unix_server(serve, path)
                session = aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(path, limit=0),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                )
                self._open[port] = server, session
            return self._open[port][1]

    async def _give_up_one(self) -> None:
        """Close the socket of the port that was unused for longest. Raises `RockError` if all are in use."""
        unused = next((port for port in self._open if not self._in_use[port]), None)
        if unused is None:
            raise RockError(f"At most {MOST_PORTS} ports of a sandbox are reached by HTTP at once.")
        server, session = self._open.pop(unused)
        server.close()
        await session.close()
        self._socket(unused).unlink(missing_ok=True)

    def _socket(self, port: int) -> Path:
        assert self._folder is not None, "it is made with the first socket"
        return Path(self._folder.name, str(port))

    async def _bridge(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._in_use[port] += 1
        try:
            connection = await self.connect(port)
            try:
                async with asyncio.TaskGroup() as both:
                    inward = both.create_task(_inward(connection, writer))
                    # An HTTP client closes both directions at once, so the program's answer has no reader any more.
                    await _outward(reader, connection)
                    inward.cancel()
            finally:
                connection.close()
        except* (OSError, SandboxError):
            pass  # the HTTP client sees that the connection breaks
        except* asyncio.CancelledError:
            pass  # `close` waits for this
        finally:
            self._in_use[port] -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def carry(self, websocket: WebSocket, port: int) -> None:
        """Let a WebSocket carry one TCP connection, in binary messages. Raises as `connect`, before it is accepted."""
        connection = await self.connect(port)
        try:
            await websocket.accept()
            both = [
                asyncio.ensure_future(_from(websocket, connection)),
                asyncio.ensure_future(_to(websocket, connection)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
            await _say_farewell(connection)
        finally:
            connection.close()

    async def close(self) -> None:
        """End all connections; none is made afterwards. It is idempotent."""
        self._closed = True
        async with self._opening:  # one that is being opened is closed with the others
            opened, self._open = list(self._open.values()), {}
            for server, session in opened:
                server.close()
                await session.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._folder is not None:
                self._folder.cleanup()


async def _outward(reader: asyncio.StreamReader, connection: PortConnection) -> None:
    while data := await reader.read(1 << 16):
        await connection.write(data)
    connection.write_eof()


async def _inward(connection: PortConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.read():
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _from(websocket: WebSocket, connection: PortConnection) -> None:
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            await connection.write(data if data is not None else message["text"].encode())
    except (OSError, SandboxError):
        await _close(websocket, 1011)


async def _to(websocket: WebSocket, connection: PortConnection) -> None:
    code = 1000
    try:
        while data := await connection.read():
            await websocket.send_bytes(data)
    except (OSError, SandboxError):
        code = 1011
    except (RuntimeError, WebSocketDisconnect):
        return
    await _close(websocket, code)


async def _say_farewell(connection: PortConnection) -> None:
    """End the connection in an orderly way, so that the program reads its end before `close` breaks it."""
    with suppress(OSError, SandboxError):  # TimeoutError too
        async with asyncio.timeout(FAREWELL_S):
            connection.write_eof()
            while await connection.read():
                pass


async def _close(websocket: WebSocket, code: int) -> None:
    with suppress(RuntimeError, WebSocketDisconnect):  # it may be closed already
        await websocket.close(code)
