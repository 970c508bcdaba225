"""A TCP connection to a program in a sandbox: the host's side. In the sandbox, `resident/network/ports.py` serves it.

Both directions have credit (see there), so what waits here for a slow reader is bounded, and a writer waits while the
program does not read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from ale_sandbox.host.channel import Channel
from ale_sandbox.resident.frames import ACK, CANCEL, CONNECT, DONE, FAILED, PIECE, PIECE_COST, frame, unpack

WINDOW = 1 << 18
GRANT_AT = WINDOW // 8
PIECE_BYTES = 1 << 16


class PortConnection:
    """One connection. `open` makes it; `close` ends it at once."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.number = channel.number()
        self._waiting: deque[bytes] = deque()
        self._granted, self._taken = WINDOW, 0
        self._room: int | None = None
        """How many bytes may be written; None before it is connected."""
        self._ended = self._closed = False
        self._answer: tuple[bytes, list[bytes]] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._lost = asyncio.ensure_future(channel.closed.wait())
        self._lost.add_done_callback(lambda _: self._notify())

    @classmethod
    async def open(cls, channel: Channel, port: int) -> Self:
        """Connect to a port. Raises `OSError` if nothing listens there, `SandboxError` if the sandbox is gone."""
        connection = cls(channel)
        channel.relays[connection.number] = connection.receive
        channel.journal.note(f"connection to port {port}")
        try:
            channel.write(frame(connection.number, CONNECT, [str(port).encode(), str(WINDOW).encode()]))
            await connection._until(lambda: connection._room is not None)
        except BaseException:
            connection.close()
            raise
        return connection

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Take a frame of the resident. Raises `ValueError` for one that it may not send."""
        fields = unpack(payload)
        if kind in (DONE, FAILED):
            self._answer = kind, fields
            self._ended = self._ended or kind == DONE
        elif kind == ACK and len(fields) == 1 and fields[0].isdigit():
            self._room = (self._room or 0) + int(fields[0])
        elif kind == PIECE and len(fields) == 1 and not self._ended:
            self._granted -= len(fields[0]) + PIECE_COST
            if self._granted < 0:
                raise ValueError("it sent more from a port than was granted")
            self._waiting.append(fields[0])
            self._ended = not fields[0]
        else:
            raise ValueError(f"it sent an invalid frame about a port, {kind!r}")
        self._notify()

    async def read(self) -> bytes:
        """Return the next bytes; none at the end. Raises `OSError` if it was broken, `SandboxError` if the sandbox is
        gone."""
        if not self._waiting and not self._ended:
            await self._until(lambda: bool(self._waiting) or self._ended)
        if not self._waiting:
            return b""
        data = self._waiting.popleft()
        self._taken += len(data) + PIECE_COST
        if self._taken >= GRANT_AT and not self._ended:
            self._granted += self._taken
            self.channel.write(frame(self.number, ACK, [str(self._taken).encode()]))
            self._taken = 0
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the program does not read. Raises as `read`."""
        view = memoryview(data)
        while view:
            await self._until(lambda: bool(self._room))
            await self.channel.writable.wait()
            size = min(len(view), self._room or 0, PIECE_BYTES)
            self._room = (self._room or 0) - size
            self.channel.write(frame(self.number, CONNECT, [bytes(view[:size])]))
            view = view[size:]

    def write_eof(self) -> None:
        """Say that no more is sent."""
        if self._answer is None:
            self.channel.write(frame(self.number, CONNECT, []))

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for what the resident sends. Raises `OSError` or `SandboxError` if that can come no more."""
        while not holds():
            if self._closed:
                raise ConnectionAbortedError("the connection was closed")
            if self._answer is not None:
                raise self._failure(*self._answer)
            if self.channel.closed.is_set():
                raise self.channel.error()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _failure(self, kind: bytes, fields: list[bytes]) -> OSError:
        if kind == FAILED and len(fields) == 2 and fields[0].isdigit():
            return OSError(int(fields[0]), fields[1].decode("utf-8", "replace"))
        return BrokenPipeError("the connection has ended")

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """End the connection. It is idempotent."""
        if self._closed:
            return
        self._closed = True
        self._lost.cancel()
        self._notify()
        self.channel.relays.pop(self.number, None)
        if self._answer is None:
            self.channel.send(self.number, CANCEL)
