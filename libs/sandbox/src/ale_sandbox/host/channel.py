"""The host's end of the connection to a resident: requests are numbered, and answers come back in any order."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

from ale.errors import OutOfMemoryError, SandboxError
from ale_sandbox.host.journal import Journal
from ale_sandbox.host.memory_watch import MemoryWatch
from ale_sandbox.resident.frames import DATA, DONE, FAILED, HEADER_BYTES, RECONNECT, USAGE, frame, take_frame, unpack

MAX_FRAME_BYTES = 1 << 30
"""A longer frame can only come from a resident that an attacker controls."""
ENDED = "its resident process ended"
OUT_OF_MEMORY = (
    "its processes used up its memory, and the kernel ended it. If the tasks need more, raise "
    "needs.resources.memory_mib."
)
DISCONNECT_S = 30.0
MOST_BYTES = 1 << 26
"""The most bytes that an answer's pieces hold together, unless the request sets another limit."""


class PendingCall:
    """A request that has not been answered yet."""

    def __init__(self, future: asyncio.Future[list[bytes]], kind: bytes, most_bytes: int) -> None:
        self.future = future
        self.pieces: list[bytes] = []
        self.left = most_bytes
        """How many more bytes its pieces may hold."""
        self.kind = kind
        self.is_work = kind != USAGE
        """Asking for usage does not keep a sandbox from being idle."""


class Channel(asyncio.Protocol):
    """Sends requests and receives answers. Once the resident is gone, every pending and later call raises."""

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.inbox = bytearray()
        self.calls: dict[int, PendingCall] = {}
        self.relays: dict[int, Callable[[bytes, bytes], None]] = {}
        """For calls of attached processes (`attach_server.py`) and of shells: the function that gets the kind and the
        payload of each frame unchanged."""
        self.resting: set[int] = set()
        """Calls of open shells: a shell does not keep a sandbox from being idle, but its commands do."""
        self.last = 0
        self.journal = Journal()
        self.writable = asyncio.Event()
        """Cleared while the resident is behind with reading what was written."""
        self.writable.set()
        self.quiet_since = 0.0
        """Event loop time of the last request or answer."""
        self.heard_at = 0.0
        """Event loop time at which the resident last sent something."""
        self.transport: asyncio.WriteTransport | None = None
        self.held_back: bytearray | None = None
        """Bytes written while disconnected (see `disconnect`); None while connected."""
        self.disconnected = asyncio.Event()
        self.closed = asyncio.Event()
        self.reason = ENDED
        self.memory: MemoryWatch | None = None
        self.on_lost: Callable[[], None] | None = None

    @classmethod
    async def open(cls, sandbox_id: str, sock: socket.socket) -> Channel:
        """Open a channel on `sock` and take it over."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(sandbox_id), sock=sock)
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's are none by inheritance

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        if self.held_back is None:
            self.writable.set()

    @property
    def busy(self) -> bool:
        """Whether a request of this process or of an attached one is unanswered."""
        return bool(self.calls or self.relays.keys() - self.resting)

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self.inbox += data
        try:
            if len(self.inbox) >= HEADER_BYTES and int.from_bytes(self.inbox[5:9], "big") > MAX_FRAME_BYTES:
                raise ValueError("a frame of the sandbox is too long")
            while (whole := take_frame(self.inbox)) is not None:
                self.take_answer(*whole)
        except ValueError as error:
            self.close(f"its resident process sent an invalid frame ({error})")

    async def disconnect(self) -> None:
        """Make the resident close its connection; requests until `reconnect` are held back. Raises `OSError` if it
        refuses, and `SandboxError` if it is gone."""
        _, agreed = self.begin(RECONNECT, [])
        self.held_back = bytearray()
        self.writable.clear()
        self.disconnected.clear()
        try:
            async with asyncio.timeout(DISCONNECT_S):
                await agreed
                await self.disconnected.wait()
            if self.closed.is_set():
                raise self.error()
        except TimeoutError:
            self.close(f"its resident process did not close its connection within {DISCONNECT_S:.0f} s")
            raise self.error() from None
        except OSError:
            self._write_held_back()
            raise

    async def reconnect(self, sock: socket.socket) -> None:
        """Continue on the resident's new connection."""
        if self.closed.is_set():
            sock.close()
            raise self.error()
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)
        self._write_held_back()

    def _write_held_back(self) -> None:
        held_back, self.held_back = self.held_back, None
        self.writable.set()
        if held_back:
            self.write(bytes(held_back))

    def connection_lost(self, exc: Exception | None) -> None:
        disconnecting = self.held_back is not None and self.reason == ENDED
        if disconnecting and not any(call.kind == RECONNECT for call in self.calls.values()):
            self.transport = None
            self.disconnected.set()
            return
        if self.memory is not None:
            if self.reason == ENDED and self.memory.kills():
                self.reason = OUT_OF_MEMORY
            self.memory.close()
        self.closed.set()
        self.disconnected.set()
        self.writable.set()
        for call in self.calls.values():
            if not call.future.done():
                call.future.set_exception(self.error())
        self.calls.clear()
        if self.on_lost is not None:
            self.on_lost()

    def take_answer(self, number: int, kind: bytes, payload: bytes) -> None:
        """Hand an answer to its waiting caller; drop it if nobody waits any more."""
        if kind in (DONE, FAILED):
            self.journal.record_answer(number, kind, payload)
        relay = self.relays.get(number)
        if relay is not None:
            self.quiet_since = asyncio.get_running_loop().time()
            relay(kind, payload)
            return
        call = self.calls.get(number)
        if call is None:
            return
        fields = unpack(payload)
        if kind == DATA:
            call.pieces += fields
            call.left -= len(payload)
            if call.left < 0:
                raise ValueError("it sent more than was asked for")
            return
        del self.calls[number]
        if call.is_work:
            self.quiet_since = asyncio.get_running_loop().time()
        if call.future.done():
            return
        if kind == DONE:
            call.future.set_result(fields if not call.pieces else call.pieces)
        elif kind == FAILED and len(fields) == 2 and fields[0].isdigit():
            code = int(fields[0])
            call.future.set_exception(OSError(code, fields[1].decode("utf-8", "replace") or os.strerror(code)))
        else:
            raise ValueError(f"unknown answer {kind!r}")

    def begin(
        self, kind: bytes, fields: list[bytes], most_bytes: int = MOST_BYTES
    ) -> tuple[int, asyncio.Future[list[bytes]]]:
        """Send a request; return its number (for `send`) and the future of its answer. Pieces of more than
        `most_bytes` together end the sandbox."""
        number = self.number()
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self.calls[number] = call = PendingCall(future, kind, most_bytes)
        self.journal.record_request(number, kind, fields)
        self.write(frame(number, kind, fields), is_work=call.is_work)
        return number, future

    def number(self) -> int:
        """Return a number for a new request. Raises `SandboxError` if the sandbox is gone."""
        if self.closed.is_set() or (self.held_back is None and (self.transport is None or self.transport.is_closing())):
            raise self.error()
        self.last = self.last % 0xFFFFFFFF + 1
        return self.last

    def write(self, data: bytes, *, is_work: bool = True) -> None:
        """Send a frame; do nothing if the sandbox is gone."""
        if self.held_back is not None:
            self.held_back += data
        elif self.transport is not None and not self.transport.is_closing():
            if is_work:
                self.quiet_since = asyncio.get_running_loop().time()
            self.transport.write(data)

    def send(self, number: int, kind: bytes) -> None:
        """Send a frame about an unanswered request (to cancel it); do nothing if the sandbox is gone."""
        self.write(frame(number, kind, []))

    async def ask(
        self, kind: bytes, fields: list[bytes], timeout_s: float, most_bytes: int = MOST_BYTES
    ) -> list[bytes]:
        """Send a request and wait for its answer. A resident silent for `timeout_s` counts as dead."""
        number, future = self.begin(kind, fields, most_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.close(f"its resident process did not answer within {timeout_s:.0f} s")
            raise self.error() from None
        finally:
            self.calls.pop(number, None)

    def error(self) -> SandboxError:
        """Make the error that says why the sandbox is gone."""
        if self.reason == OUT_OF_MEMORY:
            return OutOfMemoryError(f"The sandbox {self.sandbox_id} is gone: {self.reason}")
        return SandboxError(
            f"The sandbox {self.sandbox_id} is gone: {self.reason}. Start another one; "
            "if this happens often, check whether the machine is short of memory."
        )

    def close(self, reason: str) -> None:
        """Close the connection, which makes the resident end its sandbox."""
        if self.closed.is_set() or (self.transport is not None and self.transport.is_closing()):
            return
        self.reason = reason
        if self.transport is not None:
            self.transport.abort()
        elif self.held_back is not None:
            self.connection_lost(None)
