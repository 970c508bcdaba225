"""A sandbox that another process owns, reached through that one's door (`door.py`)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

from ale.errors import SandboxError
from ale.specs.sandbox import SandboxSpec, SandboxStats
from ale_resident.channel import Channel
from ale_resident.door import GONE, LOGS, NAME, OPEN, STATS
from ale_resident.inside.wire import unpack
from ale_resident.owner import runs
from ale_resident.sandbox import ResidentSandbox

ANSWER_S = 30.0
PIECE_BYTES = 4 << 20


class AttachedChannel(Channel):
    """A channel whose other end is the owner's door."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(sandbox_id)
        self.reason = "the process that owns it has ended, or closed the connection"

    def take_answer(self, number: int, kind: bytes, payload: bytes) -> None:
        if kind == GONE:
            self.close(b"".join(unpack(payload)).decode("utf-8", "replace"))
        else:
            super().take_answer(number, kind, payload)

    def error(self) -> SandboxError:
        return SandboxError(f"The sandbox {self.sandbox_id} is out of reach: {self.reason}.")


class AttachedSandbox(ResidentSandbox):
    """Runs commands and moves files as its owner does. `stop` leaves it and ends nothing but what was begun here."""

    async def stop(self) -> None:
        await asyncio.shield(self.begin_stop("it was left"))

    async def take_away(self) -> None:
        return

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        found = bytearray()
        while True:  # piece by piece: an owner does not keep much for somebody who reads slowly
            piece = await self.read(path, PIECE_BYTES, len(found))
            found += piece
            if len(found) > max_bytes:
                raise SandboxError(f"The sandbox {self.id} could not read {path}: larger than {max_bytes} bytes.")
            if len(piece) < PIECE_BYTES:
                return bytes(found)

    async def stats(self) -> SandboxStats:
        return SandboxStats(**json.loads(await self._asked(STATS)))

    async def logs(self) -> str:
        return (await self._asked(LOGS)).decode("utf-8", "replace")

    async def _asked(self, kind: bytes) -> bytes:
        try:
            return b"".join(await self.channel.ask(kind, [], ANSWER_S))
        except OSError as error:
            raise SandboxError(error.strerror or str(error)) from None


async def attach(folder: Path, owner: str, sandbox_id: str) -> AttachedSandbox:
    """The sandbox of the process `owner` (its id and start time, as in `new_base`), whose folders stand in the state folder.

    Raises `SandboxError`, with what may be wrong.
    """
    if not runs(owner):
        raise SandboxError(
            f"The process that started the sandbox {sandbox_id} is gone; `ale sandbox prune` removes what it left."
        )
    doors = [folder / name / NAME for name in os.listdir(folder) if name.startswith(f"base-{owner}-")]
    found, fault = await first_of(doors, sandbox_id)
    if found is None:
        fault = fault or "it is being started or ended, or that process keeps its folders elsewhere (TMPDIR)"
        pid = owner.partition("-")[0]
        raise SandboxError(f"The process {pid}, which owns the sandbox {sandbox_id}, does not let anybody in: {fault}.")
    return found


async def reached(folder: Path, sandbox_id: str) -> AttachedSandbox | None:
    """The sandbox of whichever process has it; None where none does, or none answers."""
    doors = [
        folder / name / NAME for name in os.listdir(folder)
        if runs(name.removeprefix("base-").rpartition("-")[0])
    ]  # fmt: skip
    return (await first_of(doors, sandbox_id))[0]


async def first_of(doors: list[Path], sandbox_id: str) -> tuple[AttachedSandbox | None, str]:
    """The sandbox behind whichever door has it, all being tried at once, for one may stay silent; else why there is none."""
    asked = [asyncio.ensure_future(through(door, sandbox_id)) for door in doors]
    fault = ""
    try:
        for answer in asyncio.as_completed(asked):
            try:
                return await answer, ""
            except FileNotFoundError:
                continue  # another provider of that process
            except (OSError, SandboxError) as error:
                fault = str(error).rstrip(".")
        return None, fault
    finally:
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def through(door: Path, sandbox_id: str) -> AttachedSandbox:
    """The sandbox behind a door. Raises `FileNotFoundError` where it is not there, `OSError` and `SandboxError`."""
    channel = await AttachedChannel.open(sandbox_id, connected(door))
    try:
        (spec,) = await channel.ask(OPEN, [os.fsencode(sandbox_id)], ANSWER_S)
        return AttachedSandbox(sandbox_id, SandboxSpec.model_validate_json(spec), channel, lambda _: None)
    except BaseException:
        channel.close("it was left")
        raise


def connected(path: Path) -> socket.socket:
    """A connection to a socket at a path of any length. Raises `OSError`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        folder = os.open(path.parent, os.O_PATH)
        try:
            sock.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except OSError:
        sock.close()
        raise
    return sock
