"""Bodies that are streamed: their frames, and a reader that can hold its sender up.

1. A frame is a byte that says what it is, the length (u32, big endian), and the data.
2. The kernel takes in megabytes that nobody has read, on each connection between a command and the reader of its
   output. `bound_window` bounds that, so a slow reader slows the command down. Such a connection is used once, because
   the next request on it would be slow, too.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterable

import aiohttp

STDOUT, STDERR, RESULT = b"1", b"2", b"R"
"""Kinds of frames of a command: pieces of its output, and last its result in JSON."""
PIECE = b"P"
"""A piece of a tree of files (`ale_sandbox.resident.frames.pack`)."""
FAULT = b"F"
"""A frame in the place of a result or a piece: the error, in JSON."""
HEAD_BYTES = 5
MOST_BYTES = 32 << 20
WINDOW_BYTES = 256 << 10
ONCE = {"Connection": "close"}
"""The header of a request whose connection is used once."""


def frame(kind: bytes, data: bytes) -> bytes:
    """Return a frame."""
    return kind + len(data).to_bytes(4, "big") + data


async def read_frames(chunks: AsyncIterable[bytes]) -> AsyncGenerator[tuple[bytes, bytes], None]:
    """Yield kind and data of each frame. Raises `ValueError` for a frame that is cut short or larger than
    `MOST_BYTES`."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(buffer[1:HEAD_BYTES], "big")
            if end > HEAD_BYTES + MOST_BYTES:
                raise ValueError(f"a frame of {end - HEAD_BYTES} bytes is larger than any that is sent")
            if len(buffer) < end:
                break
            kind, data = bytes(buffer[:1]), bytes(buffer[HEAD_BYTES:end])
            del buffer[:end]
            yield kind, data
    if buffer:
        raise ValueError("the last frame is cut short")


def bound_window(response: aiohttp.ClientResponse) -> None:
    """Bound how much of a response the kernel takes in before it is read."""
    connection = response.connection
    transport = None if connection is None else connection.transport
    if transport is None:
        return  # the whole response has been read already
    with socket.fromfd(transport.get_extra_info("socket").fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
