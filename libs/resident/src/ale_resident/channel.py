"""The host's end of the socket pair to a resident: requests go out numbered, answers come back in any order."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from ale.errors import OutOfMemoryError, SandboxError
from ale_resident.inside.wire import DATA, DONE, FAILED, HEADER_BYTES, PART, USAGE, frame, take_frame, unpack
from ale_resident.journal import Journal
from ale_resident.memory import MemoryWatch

MAX_FRAME_BYTES = 1 << 30
"""A longer frame can only come from a resident that somebody took over."""
ENDED = "its resident process ended"
OUT_OF_MEMORY = "what ran in it used its memory up, and the kernel ended it. Where tasks need more, raise needs.resources.memory_mib."
PART_S = 30.0
MOST_BYTES = 1 << 26
"""What the pieces of an answer hold together at most, where no request says otherwise."""


class Call:
    """A request under way."""

    def __init__(self, future: asyncio.Future[list[bytes]], kind: bytes, most_bytes: int) -> None:
        self.future = future
        self.pieces: list[bytes] = []
        self.left = most_bytes
        """Bytes that may still come before its answer."""
        self.kind = kind
        self.is_work = kind != USAGE
        """A sandbox that is looked at is idle all the same."""


class Channel(asyncio.Protocol):
    """Requests and their answers. When the resident is gone, every pending and every later call raises."""

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.inbox = bytearray()
        self.calls: dict[int, Call] = {}
        self.relays: dict[int, Callable[[bytes, bytes], None]] = {}
        """Calls of attached processes (`door.py`): who takes the kind and the payload of each frame as it came."""
        self.resting: set[int] = set()
        """Shells that are open: they keep no sandbox from being idle, their commands do."""
        self.last = 0
        self.journal = Journal()
        self.writable = asyncio.Event()
        """Not set while much of what was written has not been taken yet."""
        self.writable.set()
        self.quiet_since = 0.0
        """Loop time of the last request or answer."""
        self.transport: asyncio.WriteTransport | None = None
        self.kept: bytearray | None = None
        """What was written while there is no connection (`part`); None while there is one."""
        self.parted = asyncio.Event()
        self.closed = asyncio.Event()
        self.reason = ENDED
        self.memory: MemoryWatch | None = None
        self.on_lost: Callable[[], None] | None = None

    @classmethod
    async def open(cls, sandbox_id: str, sock: socket.socket) -> Channel:
        """Take over `sock`."""
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(sandbox_id), sock=sock)
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        if self.kept is None:
            self.writable.set()

    @property
    def busy(self) -> bool:
        """Whether a request is under way, of this process or of an attached one."""
        return bool(self.calls or self.relays.keys() - self.resting)

    def data_received(self, data: bytes) -> None:
        self.inbox += data
        try:
            if len(self.inbox) >= HEADER_BYTES and int.from_bytes(self.inbox[5:9], "big") > MAX_FRAME_BYTES:
                raise ValueError("a frame of the sandbox is too long")
            while (whole := take_frame(self.inbox)) is not None:
                self.take_answer(*whole)
        except ValueError as error:
            self.close(f"its resident process sent nonsense ({error})")

    async def part(self) -> None:
        """Have the resident let its connection go. What is asked of it until `rejoin` is kept. Raises `OSError` where it does
        not, and `SandboxError` where it is gone."""
        _, agreed = self.begin(PART, [])
        self.kept = bytearray()
        self.writable.clear()
        self.parted.clear()
        try:
            async with asyncio.timeout(PART_S):
                await agreed
                await self.parted.wait()
            if self.closed.is_set():
                raise self.error()
        except TimeoutError:
            self.close(f"its resident process did not let go of its connection within {PART_S:.0f} s")
            raise self.error() from None
        except OSError:
            self._write_kept()
            raise

    async def rejoin(self, sock: socket.socket) -> None:
        """Go on with the resident's new connection."""
        if self.closed.is_set():
            sock.close()
            raise self.error()
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)
        self._write_kept()

    def _write_kept(self) -> None:
        kept, self.kept = self.kept, None
        self.writable.set()
        if kept:
            self.write(bytes(kept))

    def connection_lost(self, exc: Exception | None) -> None:
        parting = self.kept is not None and self.reason == ENDED
        if parting and not any(call.kind == PART for call in self.calls.values()):
            self.transport = None
            self.parted.set()
            return
        if self.memory is not None:
            if self.reason == ENDED and self.memory.kills():
                self.reason = OUT_OF_MEMORY
            self.memory.close()
        self.closed.set()
        self.parted.set()
        self.writable.set()
        for call in self.calls.values():
            if not call.future.done():
                call.future.set_exception(self.error())
        self.calls.clear()
        if self.on_lost is not None:
            self.on_lost()

    def take_answer(self, number: int, kind: bytes, payload: bytes) -> None:
        """Hand an answer to whoever waits for it; one that nobody awaits any more is dropped."""
        if kind in (DONE, FAILED):
            self.journal.ended(number, kind, payload)
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
                raise ValueError("more than was asked for")
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
        """Send a request; its number (for `send`) and the future of its answer. More pieces than `most_bytes` end the sandbox."""
        number = self.number()
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self.calls[number] = call = Call(future, kind, most_bytes)
        self.journal.began(number, kind, fields)
        self.write(frame(number, kind, fields), is_work=call.is_work)
        return number, future

    def number(self) -> int:
        """A number for a new request. Raises `SandboxError` where the sandbox is gone."""
        if self.closed.is_set() or (self.kept is None and (self.transport is None or self.transport.is_closing())):
            raise self.error()
        self.last = self.last % 0xFFFFFFFF + 1
        return self.last

    def write(self, data: bytes, *, is_work: bool = True) -> None:
        """Send a frame; nothing where the sandbox is gone."""
        if self.kept is not None:
            self.kept += data
        elif self.transport is not None and not self.transport.is_closing():
            if is_work:
                self.quiet_since = asyncio.get_running_loop().time()
            self.transport.write(data)

    def send(self, number: int, kind: bytes) -> None:
        """Say something about a request under way (cancel it); nothing where the sandbox is gone."""
        self.write(frame(number, kind, []))

    async def ask(
        self, kind: bytes, fields: list[bytes], timeout_s: float, most_bytes: int = MOST_BYTES
    ) -> list[bytes]:
        """Send a request and await its answer. A resident that is silent for `timeout_s` counts as dead."""
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
        """The sandbox is gone, in a sentence."""
        if self.reason == OUT_OF_MEMORY:
            return OutOfMemoryError(f"The sandbox {self.sandbox_id} is gone: {self.reason}")
        return SandboxError(
            f"The sandbox {self.sandbox_id} is gone: {self.reason}. Start another one; "
            "where this happens often, see whether the machine is short of memory."
        )

    def close(self, reason: str) -> None:
        """End the connection, which makes the resident end its sandbox."""
        if self.closed.is_set() or (self.transport is not None and self.transport.is_closing()):
            return
        self.reason = reason
        if self.transport is not None:
            self.transport.abort()
        elif self.kept is not None:
            self.connection_lost(None)
