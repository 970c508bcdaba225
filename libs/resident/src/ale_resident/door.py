"""The door of a provider: a Unix socket through which other processes of the same user reach its sandboxes (`attached.py`).

1. It stands in the provider's own folder and is gone with it; whoever is neither this user nor root is turned away.
2. A connection begins by naming a sandbox (`OPEN`). From then on the frames are those of `wire.py`: the door gives each
   request a number of its own and passes it on to the resident, and the answers back. It does not look into them, but
   for the journal; what only an owner may ask (`FORBIDDEN`) is refused, `STATS` and `LOGS` are answered by the owner.
3. A client that is slow to read, or that sends faster than the resident takes, waits or is cut off; one that hangs up ends
   what it had running. Neither holds this process up, nor makes it keep more than a few pieces of a bounded size.
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
from ale_resident.inside.wire import ACK, CANCEL, DONE, FAILED, HEADER_BYTES, INIT, PART, RESET, SHELL, frame, unpack
from ale_resident.listener import listening
from ale_resident.sandbox import ResidentSandbox

NAME = ".door"
"""No sandbox, whose folder could stand beside it, can have this name."""
OPEN, STATS, LOGS = b"o", b"s", b"l"
"""Answered by the door: name a sandbox (its spec is the answer), what it uses, what happened in it."""
GONE = b"g"
"""From the door, about no call: the sandbox has ended, and why."""
FORBIDDEN = frozenset({INIT, PART, RESET})
FOLLOW_UPS = frozenset({CANCEL, ACK})
"""What is said about a call under way. Anything else begins one, where its number is not in use."""
MOST_CLIENTS = 32
OPEN_TIMEOUT_S = 10.0
REQUEST_BYTES = 32 << 20
"""A longer request is refused."""
BACKLOG_BYTES = 32 << 20
"""A client that has so much left to read, and is sent more, is cut off."""
TOO_LONG = f"a request from outside the owner's process may hold {REQUEST_BYTES >> 20} MiB, and this one holds more"
Find = Callable[[str], ResidentSandbox | None]


class Door:
    """Serves attached processes. Made by `opened`."""

    def __init__(self, find: Find) -> None:
        self.find = find
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    @classmethod
    async def opened(cls, base: Path, find: Find) -> Door:
        """A door in the folder `base`; `find` gives a sandbox of this process by its id."""
        door = cls(find)
        door._server = await asyncio.start_unix_server(door._serve, sock=listening(base / NAME), limit=1 << 18)
        return door

    async def close(self) -> None:
        """Send everybody away. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        clients = list(self._clients)
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. Whatever its end is, it is nobody else's business."""
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
            pass  # by `close`; asyncio would print a traceback for it
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        """Find out which sandbox is meant, then serve it until one of the two is gone."""
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            number, kind, payload = await request(reader)
        if kind != OPEN:
            return
        sandbox_id = os.fsdecode(unpack(payload)[0])
        sandbox = self.find(sandbox_id)
        if sandbox is None or sandbox.channel.closed.is_set():
            reason = f"no sandbox {sandbox_id} is here"
            writer.write(frame(number, FAILED, [str(errno.ENOENT).encode(), reason.encode()]))
            await writer.drain()
            return
        writer.write(frame(number, DONE, [sandbox.spec.model_dump_json(exclude={"files"}).encode()]))
        client = Client(sandbox, writer, pid)
        serving = asyncio.ensure_future(client.serve(reader))
        ending = asyncio.ensure_future(sandbox.channel.closed.wait())
        try:
            await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                writer.write(frame(0, GONE, [sandbox.channel.reason.encode()]))
                writer.write_eof()
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    await writer.drain()
                    await serving  # the client closes when it has read that
        finally:
            for each in (serving, ending):
                each.cancel()
            await asyncio.gather(serving, ending, return_exceptions=True)
            client.leave()


class Client:
    """What an attached process has under way."""

    def __init__(self, sandbox: ResidentSandbox, writer: asyncio.StreamWriter, pid: int) -> None:
        self.sandbox, self.writer, self.pid = sandbox, writer, pid
        self.noted = False
        self.channel = sandbox.channel
        self.calls: dict[int, int] = {}
        """The client's number of a call -> the channel's."""

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Take its frames, until there are no more."""
        while True:
            try:
                number, kind, payload = await request(reader)
            except OverflowError as error:
                self.fail(error.args[0], errno.EMSGSIZE, TOO_LONG)
                continue
            if kind in (STATS, LOGS):
                await self.tell(number, kind)
            elif kind in FORBIDDEN:
                self.fail(number, errno.EPERM, "only the process that owns the sandbox may ask for that")
            elif number in self.calls:
                self.channel.write(raw(self.calls[number], kind, payload))
            elif kind not in FOLLOW_UPS:
                self.begin(number, kind, payload)
            await self.channel.writable.wait()
            await self.writer.drain()

    def begin(self, number: int, kind: bytes, payload: bytes) -> None:
        """Pass a request on, under a number of the channel's."""
        fields = unpack(payload)  # nonsense ends the connection here, before it reaches the resident
        try:
            own = self.channel.number()
        except AleError:
            return  # the client is told that the sandbox is gone
        if not self.noted:  # who only looks leaves no line
            self.noted = True
            self.sandbox.note(f"process {self.pid} is attached")
        self.calls[number] = own
        self.channel.relays[own] = lambda kind, payload: self.answer(number, own, kind, payload)
        if kind == SHELL:
            self.channel.resting.add(own)
        self.channel.journal.began(own, kind, fields, f"(process {self.pid}) ")
        self.channel.write(raw(own, kind, payload))

    def answer(self, number: int, own: int, kind: bytes, payload: bytes) -> None:
        """A frame about one of its calls."""
        if kind in (DONE, FAILED):
            self.calls.pop(number, None)
            self.forget(own)
        if self.writer.transport.get_write_buffer_size() > BACKLOG_BYTES:
            self.writer.transport.abort()
        elif not self.writer.is_closing():
            self.writer.write(raw(number, kind, payload))

    async def tell(self, number: int, kind: bytes) -> None:
        """What the owner knows."""
        try:
            found = json.dumps(asdict(await self.sandbox.stats())) if kind == STATS else await self.sandbox.logs()
        except (AleError, OSError) as error:
            self.fail(number, errno.EIO, str(error))
        else:
            self.writer.write(frame(number, DONE, [found.encode("utf-8", "replace")]))

    def fail(self, number: int, code: int, reason: str) -> None:
        """A call's failure."""
        self.writer.write(frame(number, FAILED, [str(code).encode(), reason.encode("utf-8", "replace")]))

    def leave(self) -> None:
        """It has gone: what it has running ends."""
        for own in self.calls.values():
            self.forget(own)
            self.channel.send(own, CANCEL)
        self.calls.clear()
        if self.noted:
            self.sandbox.note(f"process {self.pid} is attached no more")

    def forget(self, own: int) -> None:
        """A call is over, or its answer is for nobody."""
        self.channel.relays.pop(own, None)
        self.channel.resting.discard(own)


async def request(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """The next frame. Raises `OverflowError` with its number where it is too long; that one is read and forgotten."""
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
    """A frame around a payload that is packed already."""
    return number.to_bytes(4, "big") + kind + len(payload).to_bytes(4, "big") + payload


def peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """Process and user at the other end, by the kernel's word."""
    sock: socket.socket = writer.get_extra_info("socket")
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
