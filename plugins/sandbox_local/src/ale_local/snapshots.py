"""Makes and restores snapshots of local sandboxes: the resident reads and writes the writable places.

1. The host never reads a sandbox's files directly, because links could lead anywhere. The resident reads the places,
   and its records are written like a downloaded tree (`ale_sandbox.resident.trees.tree_writer`), but with owners, all
   mode bits and every link.
2. Processes are stopped meanwhile, for at most ten seconds; a larger sandbox continues then, and its later writes may
   be in the snapshot only in part.
3. If overlays can be mounted, a snapshot is a *layer*: files on the host's disk with the owners' ids there, which any
   number of sandboxes can share without a copy. Otherwise it is an *archive*, whose records are sent to the resident of
   a new sandbox; this is slower, and the archive must fit on that sandbox's disk.
4. A snapshot of a fork is complete in itself. Extended attributes and hard links are not saved.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ale.errors import SandboxError
from ale_local.snapshot_store import Form, HeldSnapshot, SnapshotStore
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.threads import in_thread
from ale_sandbox.host.tree_transfers import Transfer, as_sandbox_error, finish, read_pieces, receive
from ale_sandbox.resident.frames import pack, unpack
from ale_sandbox.resident.trees.tree_reader import END, InvalidTree
from ale_sandbox.resident.trees.tree_writer import Writer

NAMES_BYTES = 1 << 28
"""The most bytes that names, modes and times may take in an archive."""


class LayerWriter(Writer):
    """Writes a place as an overlay's lower folder, in which every entry has its owner's id on the host."""

    def __init__(self, folder: Path, number: int, uid_base: int, max_bytes: int) -> None:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        super().__init__(parent, b"%d" % number, whole=True, max_bytes=max_bytes)
        self.uid_base = uid_base

    def hand_over(self, folder: int, base: bytes, owner: int) -> None:
        user = self.uid_base + owner
        os.chown(base, user, user, dir_fd=folder, follow_symlinks=False)


class ArchiveWriter:
    """Writes the pieces of a place into a file, each after its length."""

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        self.file, self.left = file, max_bytes + NAMES_BYTES

    def take(self, fields: list[bytes]) -> bool:
        """Write a piece; return whether it was the last."""
        data = pack(fields)
        self.left -= len(data) + 4
        if self.left < 0:
            raise InvalidTree("it holds more than the sandbox's limits allow")
        if data:
            self.file.write(len(data).to_bytes(4, "big") + data)
        return fields[-4:-3] == [END]


@dataclass(frozen=True)
class SnapshotMaker:
    """Makes the snapshots of one sandbox."""

    layers: SnapshotStore
    places: tuple[str, ...]
    form: Form
    uid_base: int
    max_bytes: int
    """The most bytes that a sandbox with its limits can hold."""

    async def take(self, channel: Channel, name: str | None) -> str:
        """Make a snapshot and return its name. Raises `SandboxError`."""
        with as_sandbox_error(f"A snapshot of the sandbox {channel.sandbox_id} could not be made"):
            replaces = name is not None and self.layers.read(name) is not None
            draft = self.layers.draft()
            try:
                size = await self.copy(channel, draft.path)
                made = self.layers.publish(
                    draft, name, form=self.form, places=self.places, uid_base=self.uid_base, size=size
                )
            except BaseException:
                await in_thread(self.layers.release, draft)
                raise
            try:
                await in_thread(self.layers.release, draft)
            except asyncio.CancelledError:
                if not replaces:
                    await in_thread(self.layers.remove, made)
                raise
            return made

    async def copy(self, channel: Channel, folder: Path) -> int:
        """Copy the places into a new folder; return their size."""
        writers: list[Writer] = []
        left = self.max_bytes
        try:
            async with Transfer(channel) as frozen:
                await frozen.answer(frozen.ask(b"stand"))
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
    """Write a place into a file; return its size."""
    with path.open("xb") as file:
        writer, ended = ArchiveWriter(file, max_bytes), False
        async with aclosing(transfer.pieces()) as pieces:
            async for fields in pieces:
                ended = await in_thread(writer.take, fields)
                if ended:
                    return file.tell()
    raise InvalidTree("the records of a place are cut short")


async def restore(held: HeldSnapshot, channel: Channel) -> None:
    """Write an archive into a new sandbox's empty places; nothing to do for a layer. Raises `SandboxError`."""
    if held.snapshot.form == "layer":
        return
    with as_sandbox_error(f"The snapshot could not be restored in the sandbox {channel.sandbox_id}"):
        for number, place in enumerate(held.snapshot.places):
            with (held.path / str(number)).open("rb") as file:
                async with Transfer(channel) as transfer:
                    await transfer.answer(transfer.ask(b"in", os.fsencode(place), b"whole"))
                    await transfer.deliver(read_pieces(pieces_of(file)))


def pieces_of(file: BinaryIO) -> Callable[[], tuple[list[bytes], bool]]:
    """Return a function that reads an archive, one piece per call."""

    def read() -> tuple[list[bytes], bool]:
        size = int.from_bytes(file.read(4), "big")
        fields = unpack(file.read(size))
        if not fields:
            raise SandboxError("The snapshot's archive is damaged; remove it and make another.")
        return fields, fields[-4:-3] == [END]

    return read
