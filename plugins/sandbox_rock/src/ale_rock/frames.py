"""Frames of the bodies that are streamed: a byte that says what it is, the length (u32, big endian), and the data."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

STDOUT, STDERR, RESULT = b"1", b"2", b"R"
"""Of a command: a piece of its output, and last its result in JSON."""
PIECE = b"P"
"""A piece of a tree of files (`ale_sandbox.resident.frames.pack`)."""
FAULT = b"F"
"""In place of what should come: what went wrong, in JSON."""
HEAD_BYTES = 5
MOST_BYTES = 32 << 20


def frame(kind: bytes, data: bytes) -> bytes:
    """Return a frame."""
    return kind + len(data).to_bytes(4, "big") + data


async def read_frames(chunks: AsyncIterable[bytes]) -> AsyncGenerator[tuple[bytes, bytes], None]:
    """Yield kind and data of each frame. Raises `ValueError` for one that is cut short or larger than any that is
    sent."""
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
