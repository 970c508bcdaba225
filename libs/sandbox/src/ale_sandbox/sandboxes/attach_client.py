"""A sandbox that another process owns, reached through that process's attach server (`attach_server.py`)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

from ale.errors import SandboxError
from ale.specs.sandbox import SandboxSpec
from ale.specs.sandbox_protocols import SandboxStats
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.owned_folders import is_running
from ale_sandbox.resident.frames import unpack
from ale_sandbox.sandboxes.attach_server import GONE, LOGS, NAME, OPEN, STATS
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

ANSWER_S = 30.0
PIECE_BYTES = 4 << 20


class AttachedChannel(Channel):
    """A channel whose other end is the owner's attach server."""

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
    """Runs commands and moves files like its owner. `stop` detaches and ends only what this process began."""

    async def stop(self) -> None:
        await asyncio.shield(self.begin_stop("this process detached from it"))

    async def clean_up(self) -> None:
        return

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        found = bytearray()
        while True:  # piece by piece, because an owner buffers little for a slow reader
            piece = await self.read(path, PIECE_BYTES, len(found))
            found += piece
            if len(found) > max_bytes:
                raise SandboxError(f"The sandbox {self.id} could not read {path}: larger than {max_bytes} bytes.")
            if len(piece) < PIECE_BYTES:
                return bytes(found)

    async def stats(self) -> SandboxStats:
        return SandboxStats(**json.loads(await self._ask_owner(STATS)))

    async def logs(self) -> str:
        return (await self._ask_owner(LOGS)).decode("utf-8", "replace")

    async def _ask_owner(self, kind: bytes) -> bytes:
        try:
            return b"".join(await self.channel.ask(kind, [], ANSWER_S))
        except OSError as error:
            raise SandboxError(error.strerror or str(error)) from None


async def attach(folder: Path, owner: str, sandbox_id: str) -> AttachedSandbox:
    """Attach to a sandbox of the process `owner` (its id and start time, as in `new_base`) through the state folder.

    Raises `SandboxError`, which says what may be wrong.
    """
    if not is_running(owner):
        raise SandboxError(
            f"The process that started the sandbox {sandbox_id} is gone; `ale sandbox prune` removes what it left."
        )
    sockets = [folder / name / NAME for name in os.listdir(folder) if name.startswith(f"base-{owner}-")]
    found, fault = await attach_through_any(sockets, sandbox_id)
    if found is None:
        fault = fault or "it is being started or stopped, or that process has its folders elsewhere (TMPDIR)"
        pid = owner.partition("-")[0]
        raise SandboxError(f"The process {pid} owns the sandbox {sandbox_id}, and attaching to it failed: {fault}.")
    return found


async def attach_by_id(folder: Path, sandbox_id: str) -> AttachedSandbox | None:
    """Attach to a sandbox of whichever process owns it; return None if none does or none answers."""
    sockets = [
        folder / name / NAME for name in os.listdir(folder) if is_running(name.removeprefix("base-").rpartition("-")[0])
    ]
    return (await attach_through_any(sockets, sandbox_id))[0]


async def attach_through_any(sockets: list[Path], sandbox_id: str) -> tuple[AttachedSandbox | None, str]:
    """Attach through whichever server has the sandbox, or return why none does. All are tried at once, because one may
    stay silent."""
    asked = [asyncio.ensure_future(attach_through(path, sandbox_id)) for path in sockets]
    fault = ""
    try:
        for answer in asyncio.as_completed(asked):
            try:
                return await answer, ""
            except FileNotFoundError:
                continue  # the server of another provider of that process
            except (OSError, SandboxError) as error:
                fault = str(error).rstrip(".")
        return None, fault
    finally:
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def attach_through(socket_path: Path, sandbox_id: str) -> AttachedSandbox:
    """Attach through the server at a path. Raises `FileNotFoundError` if the sandbox is not there, `OSError` and
    `SandboxError`."""
    channel = await AttachedChannel.open(sandbox_id, connect(socket_path))
    try:
        (spec,) = await channel.ask(OPEN, [os.fsencode(sandbox_id)], ANSWER_S)
        return AttachedSandbox(sandbox_id, SandboxSpec.model_validate(json.loads(spec)), channel, lambda _: None)
    except BaseException:
        channel.close("this process detached from it")
        raise


def connect(path: Path) -> socket.socket:
    """Connect to a socket at a path of any length. Raises `OSError`."""
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
