"""Snapshots of local sandboxes: the writable places, read and put back through the resident.

1. Nothing of a sandbox is read from outside, where its links could lead anywhere: the resident walks the places, and what it
   sends is written as what a downloaded tree is (`ale_resident.inside.unpacking`), but with owners, all mode bits and every link.
2. Processes stand still meanwhile, for ten seconds at most; what a larger sandbox writes after that may be in it by halves.
3. Where overlays can be mounted a snapshot is a *layer*: files on the host's disk, owned by the sandbox's ids there, on
   which any number of sandboxes stand without a copy. Elsewhere it is an *archive*, whose records are sent to the resident of
   a new sandbox: slower, and as large as that sandbox's own disk at most.
4. A snapshot of a sandbox that was started from a snapshot is a whole one. Extended attributes and hard links are not kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ale.errors import SandboxError
from ale_local.layers import Form, Held, Layers
from ale_resident.channel import Channel
from ale_resident.inside.packing import END, Refused
from ale_resident.inside.unpacking import Writer
from ale_resident.inside.wire import pack, unpack
from ale_resident.threads import in_thread
from ale_resident.trees import Transfer, finish, receive, told

NAMES_BYTES = 1 << 28
"""What the names, modes and times in an archive may take."""


class LayerWriter(Writer):
    """Writes a place as an overlay's lower folder: every entry belongs to the id of its owner in the sandbox."""

    def __init__(self, folder: Path, number: int, uid_base: int, max_bytes: int) -> None:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        super().__init__(parent, b"%d" % number, whole=True, max_bytes=max_bytes)
        self.uid_base = uid_base

    def hand_over(self, folder: int, base: bytes, owner: int) -> None:
        user = self.uid_base + owner
        os.chown(base, user, user, dir_fd=folder, follow_symlinks=False)


class ArchiveWriter:
    """Writes the pieces of a place into a file, each behind its length."""

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        self.file, self.left = file, max_bytes + NAMES_BYTES

    def take(self, fields: list[bytes]) -> bool:
        """Write a piece; whether it was the last."""
        data = pack(fields)
        self.left -= len(data) + 4
        if self.left < 0:
            raise Refused("it holds more than a sandbox of its size can")
        if data:
            self.file.write(len(data).to_bytes(4, "big") + data)
        return fields[-4:-3] == [END]


@dataclass(frozen=True)
class Camera:
    """Makes the snapshots of one sandbox."""

    layers: Layers
    places: tuple[str, ...]
    form: Form
    uid_base: int
    max_bytes: int
    """More than that a sandbox of its size cannot hold."""

    async def take(self, channel: Channel, name: str | None) -> str:
        """Make a snapshot; its name. Raises `SandboxError`."""
        with told(f"A snapshot of the sandbox {channel.sandbox_id} could not be made"):
            draft = self.layers.draft()
            try:
                size = await self.copy(channel, draft.path)
                return self.layers.publish(draft, name, self.form, self.places, self.uid_base, size)
            finally:
                await in_thread(self.layers.settle, draft)

    async def copy(self, channel: Channel, folder: Path) -> int:
        """Copy the places into a new folder; how much they hold."""
        writers: list[Writer] = []
        left = self.max_bytes
        try:
            async with Transfer(channel) as standstill:
                await standstill.answer(standstill.ask(b"stand"))
                for number, place in enumerate(self.places):
                    async with Transfer(channel) as transfer:
                        await transfer.answer(transfer.ask(b"out", os.fsencode(place), b"whole"))
                        if self.form == "archive":
                            left -= await archive(folder / str(number), transfer, left)
                        else:
                            writers.append(LayerWriter(folder, number, self.uid_base, left))
                            await receive(transfer, writers[-1])
                            left -= writers[-1].bytes
            for writer in writers:
                await finish(writer)
        finally:
            for writer in writers:
                writer.close()
        return self.max_bytes - left


async def archive(path: Path, transfer: Transfer, max_bytes: int) -> int:
    """Write a place into a file; how large it is."""
    with path.open("xb") as file:
        writer, ended = ArchiveWriter(file, max_bytes), False
        async with aclosing(transfer.pieces()) as pieces:
            async for fields in pieces:
                ended = await in_thread(writer.take, fields)
                if ended:
                    return file.tell()
    raise Refused("a place is cut short")


async def restore(held: Held, channel: Channel) -> None:
    """Put an archive into a sandbox whose places are empty; on a layer it stands already. Raises `SandboxError`."""
    if held.snapshot.form == "layer":
        return
    with told(f"The snapshot could not be put into the sandbox {channel.sandbox_id}"):
        for number, place in enumerate(held.snapshot.places):
            with (held.path / str(number)).open("rb") as file:
                async with Transfer(channel) as transfer:
                    await transfer.answer(transfer.ask(b"in", os.fsencode(place), b"whole"))
                    await transfer.deliver(pieces_of(file))


def pieces_of(file: BinaryIO) -> Callable[[], tuple[list[bytes], bool]]:
    """Reads the pieces of an archive, one a call."""

    def read() -> tuple[list[bytes], bool]:
        size = int.from_bytes(file.read(4), "big")
        fields = unpack(file.read(size))
        if not fields:
            raise SandboxError("The snapshot's archive is damaged; remove it and make another.")
        return fields, fields[-4:-3] == [END]

    return read
