"""A resident that somebody took over: it answers requests for trees with whatever the test says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from ale_sandbox.host.channel import Channel
from ale_sandbox.resident.frames import DATA as MORE
from ale_sandbox.resident.frames import DONE, TREE, frame, take_frame, unpack
from ale_sandbox.resident.trees.tree_reader import DATA, END, FILE, FOLDER, LINK

FACTS = b"420 1700000000000000000 %d 1000"
Piece = list[bytes]


def folder(name: bytes = b"", mode: int = 0o755) -> Piece:
    """The record of a folder; the root where it has no name."""
    return [FOLDER, name, b"%d 1700000000000000000 0 1000" % mode, b""]


def file(name: bytes, content: bytes = b"x", size: int | None = None, mode: int = 0o644) -> Piece:
    """The records of a file."""
    facts = b"%d 1700000000000000000 %d 1000" % (mode, len(content) if size is None else size)
    return [FILE, name, facts, b"", *([DATA, b"0", content, b""] if content else [])]


def link(name: bytes, target: bytes) -> Piece:
    """The record of a link."""
    return [LINK, name, FACTS % 0, target]


END_RECORD = [END, b"", b"", b""]


@asynccontextmanager
async def fake_resident(pieces: Iterable[Piece], *, ends: bool = True) -> AsyncIterator[tuple[Channel, list[bytes]]]:
    """A channel whose other end hands out `pieces`, the last one as the call's end; and the kinds of what it was
    asked."""
    ours, theirs = socket.socketpair()
    asked: list[bytes] = []
    reader, writer = await asyncio.open_connection(sock=theirs)

    async def serve() -> None:
        inbox, left = bytearray(), iter(pieces)
        begun: set[int] = set()
        while data := await reader.read(1 << 16):
            inbox += data
            while (whole := take_frame(inbox)) is not None:
                call, kind, payload = whole
                asked.append(kind)
                if kind != TREE:
                    continue
                unpack(payload)
                if call not in begun:
                    begun.add(call)
                    writer.write(frame(call, MORE, []))
                    continue
                piece = next(left, None)
                if piece is None:
                    if ends:
                        writer.write(frame(call, DONE, []))
                    continue
                writer.write(frame(call, MORE, piece))
            await writer.drain()

    serving = asyncio.ensure_future(serve())
    channel = await Channel.open("fake", ours)
    try:
        yield channel, asked
    finally:
        channel.close("the test is over")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        writer.close()
