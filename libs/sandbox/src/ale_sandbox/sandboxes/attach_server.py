"""A provider's attach server: a Unix socket through which the user's other processes (`attach_client.py`) reach its
sandboxes.

1. The socket lies in the provider's own folder and is removed with it. Users other than this one and root are refused.
2. A connection begins by naming a sandbox (`OPEN`). From then on the frames are those of `frames.py`: the server gives
   each request a number of its own, passes it on to the resident and the answers back. It reads them only for the
   journal. What only an owner may ask (`FORBIDDEN`) is refused; the owner answers `STATS` and `LOGS` itself.
3. A client that reads slowly, or sends faster than the resident takes, waits or is cut off; when a client hangs up,
   what it has running is ended. No client can block this process or make it buffer more than a few pieces of bounded
   size.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ale.errors import AleError
from ale.messages import whole_characters
from ale_sandbox.host.unix_socket import listen
from ale_sandbox.resident.frames import (
    ACK,
    CANCEL,
    DONE,
    FAILED,
    HEADER_BYTES,
    INIT,
    RECONNECT,
    RESET,
    SHELL,
    frame,
    unpack,
)
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

NAME = ".attach"
"""The socket's name; no sandbox, whose folder would lie beside it, can have this name."""
OPEN, STATS, LOGS = b"o", b"s", b"l"
"""Requests that the server answers: open a sandbox (answered with its spec), its usage, its journal."""
GONE = b"g"
"""Sent by the server, not as an answer: the sandbox has ended, and why."""
FORBIDDEN = frozenset({INIT, RECONNECT, RESET})
FOLLOW_UPS = frozenset({CANCEL, ACK})
"""Frames about a running call. Any other frame begins a call, if its number is not in use."""
MOST_CLIENTS = 32
OPEN_TIMEOUT_S = 10.0
REQUEST_BYTES = 32 << 20
"""A longer request is refused."""
BACKLOG_BYTES = 32 << 20
"""A client with more than this left to read is cut off."""
TOO_LONG = f"a request from outside the owner's process may hold {REQUEST_BYTES >> 20} MiB, and this one holds more"
Find = Callable[[str], ResidentSandbox | None]


class AttachServer:
    """Serves attached processes. `AttachServer.open` makes it."""

    def __init__(self, find: Find) -> None:
        self.find = find
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, base: Path, find: Find) -> AttachServer:
        """Start a server in the folder `base`; `find` returns a sandbox of this process by its id."""
        server = cls(find)
        server._server = await asyncio.start_unix_server(server._serve, sock=listen(base / NAME), limit=1 << 18)
        return server

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        clients = list(self._clients)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. Its failure affects no other."""
        task = asyncio.current_task()
        assert task is not None
        try:
            pid, uid = peer(writer)
            if self._server is not None and uid in (0, os.getuid()) and len(self._clients) < MOST_CLIENTS:
                self._clients.add(task)
                await self._attach(reader, writer, pid)
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # `close` cancelled this; asyncio would print a traceback for it
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        """Find the sandbox that the client names and serve it until the client or the sandbox is gone."""
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            number, kind, payload = await request(reader)
        if kind != OPEN:
            return
        sandbox_id = os.fsdecode(unpack(payload)[0])
        sandbox = self.find(sandbox_id)
        if sandbox is None or sandbox.channel.closed.is_set():
            reason = f"there is no sandbox {sandbox_id} in this process"
            writer.write(frame(number, FAILED, [str(errno.ENOENT).encode(), whole_characters(reason).encode()]))
            await writer.drain()
            return
        spec = sandbox.spec.model_dump(mode="json", exclude={"files"})
        writer.write(frame(number, DONE, [json.dumps(spec).encode()]))  # ASCII, for it may hold half a character
        client = Client(sandbox, writer, pid)
        serving = asyncio.ensure_future(client.serve(reader))
        ending = asyncio.ensure_future(sandbox.channel.closed.wait())
        try:
            await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                writer.write(frame(0, GONE, [whole_characters(sandbox.channel.reason).encode()]))
                writer.write_eof()
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    await writer.drain()
                    await serving  # the client closes the connection when it has read that
        finally:
            for each in (serving, ending):
                each.cancel()
            await asyncio.gather(serving, ending, return_exceptions=True)
            client.leave()


class Client:
    """An attached process and its running calls."""

    def __init__(self, sandbox: ResidentSandbox, writer: asyncio.StreamWriter, pid: int) -> None:
        self.sandbox, self.writer, self.pid = sandbox, writer, pid
        self.noted = False
        self.channel = sandbox.channel
        self.calls: dict[int, int] = {}
        """The client's number of each call -> the channel's number of it."""

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Take the client's frames until there are no more."""
        while True:
            try:
                number, kind, payload = await request(reader)
            except OverflowError as error:
                self.fail(error.args[0], errno.EMSGSIZE, TOO_LONG)
                continue
            if kind in (STATS, LOGS):
                await self.send_stats_or_logs(number, kind)
            elif kind in FORBIDDEN:
                self.fail(number, errno.EPERM, "only the process that owns the sandbox may ask for that")
            elif number in self.calls:
                self.channel.write(raw(self.calls[number], kind, payload))
            elif kind not in FOLLOW_UPS:
                self.begin(number, kind, payload)
            await self.channel.writable.wait()
            await self.writer.drain()

    def begin(self, number: int, kind: bytes, payload: bytes) -> None:
        """Pass a request on to the resident, under a number of the channel."""
        fields = unpack(payload)  # an invalid request ends the connection here, before it reaches the resident
        try:
            own = self.channel.number()
        except AleError:
            return  # the client gets the answer that the sandbox is gone
        if not self.noted:  # a client that only asks for usage or logs is not recorded
            self.noted = True
            self.sandbox.note(f"process {self.pid} is attached")
        self.calls[number] = own
        self.channel.relays[own] = lambda kind, payload: self.answer(number, own, kind, payload)
        if kind == SHELL:
            self.channel.resting.add(own)
        self.channel.journal.record_request(own, kind, fields, f"(process {self.pid}) ")
        self.channel.write(raw(own, kind, payload))

    def answer(self, number: int, own: int, kind: bytes, payload: bytes) -> None:
        """Send the client a frame about one of its calls."""
        if kind in (DONE, FAILED):
            self.calls.pop(number, None)
            self.forget(own)
        if self.writer.transport.get_write_buffer_size() > BACKLOG_BYTES:
            self.writer.transport.abort()
        elif not self.writer.is_closing():
            self.writer.write(raw(number, kind, payload))

    async def send_stats_or_logs(self, number: int, kind: bytes) -> None:
        """Answer a request that the owner answers itself."""
        try:
            found = json.dumps(asdict(await self.sandbox.stats())) if kind == STATS else await self.sandbox.logs()
        except (AleError, OSError) as error:
            self.fail(number, errno.EIO, str(error))
        else:
            self.writer.write(frame(number, DONE, [whole_characters(found).encode()]))

    def fail(self, number: int, code: int, reason: str) -> None:
        """Send the failure of a call."""
        self.writer.write(frame(number, FAILED, [str(code).encode(), whole_characters(reason).encode()]))

    def leave(self) -> None:
        """End what the client has running, because it is gone."""
        for own in self.calls.values():
            self.forget(own)
            self.channel.send(own, CANCEL)
        self.calls.clear()
        if self.noted:
            self.sandbox.note(f"process {self.pid} has detached")

    def forget(self, own: int) -> None:
        """Forget a call that has ended, or whose caller has gone."""
        self.channel.relays.pop(own, None)
        self.channel.resting.discard(own)


async def request(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Read the next frame. Raises `OverflowError` with its number if it is too long; it is then skipped."""
    head = await reader.readexactly(HEADER_BYTES)
    number, kind, left = int.from_bytes(head[:4], "big"), head[4:5], int.from_bytes(head[5:], "big")
    if left <= REQUEST_BYTES:
        return number, kind, await reader.readexactly(left)
    while left:
        piece = await reader.read(min(left, 1 << 18))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(piece)
    raise OverflowError(number)


def raw(number: int, kind: bytes, payload: bytes) -> bytes:
    """Make a frame around an already packed payload."""
    return number.to_bytes(4, "big") + kind + len(payload).to_bytes(4, "big") + payload


def peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """Ask the kernel which process and user are at the other end."""
    sock: socket.socket = writer.get_extra_info("socket")
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
