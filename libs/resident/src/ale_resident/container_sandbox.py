"""A sandbox that is a container."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ale.errors import ConfigError, SandboxError, UncleanError
from ale.specs.sandbox import SandboxSpec, SandboxStats
from ale_resident import image_snapshots
from ale_resident.channel import Channel
from ale_resident.checkpoints import PREFIX, Checkpoints
from ale_resident.engine import Engine
from ale_resident.listener import listener
from ale_resident.memory import peer
from ale_resident.owner import remove_folder
from ale_resident.sandbox import ResidentSandbox
from ale_resident.threads import in_thread, to_its_end

SOCKET = "socket"
"""What the resident connects to, in the folder `control`."""
REJOIN_S = 20.0


class ContainerSandbox(ResidentSandbox):
    """A container of this process. Made by `ContainerProvider.start_sandbox`."""

    def __init__(
        self, spec: SandboxSpec, name: str, channel: Channel, engine: Engine, resident: int, control: Path,
        on_stopped: Callable[[ContainerSandbox], None],
    ) -> None:  # fmt: skip
        super().__init__(name, spec, channel, on_stopped)
        self.engine = engine
        self.resident, self.control = resident, control
        """The number of its first process, and the folder in which that looks for this one's socket."""
        self.in_memory = False
        self.own_snapshots: set[str] = set()
        self.checkpoints: Checkpoints | None = None
        """There where processes can be kept."""
        self._one_checkpoint = asyncio.Lock()

    async def stats(self) -> SandboxStats:
        if self.channel.closed.is_set():
            raise self.channel.error()
        found, own = await asyncio.gather(self.engine.stats(self.id), self.usage())
        disk = None if own.disk_bytes is None else own.disk_bytes + (found.disk_bytes or 0)
        return replace(own, memory_bytes=found.memory_bytes, cpu_s=found.cpu_s, pids=found.pids, disk_bytes=disk)

    async def snapshot(self, name: str | None = None, *, processes: bool = False) -> str:
        """Keep the file system as an image; or that, and what runs, as a checkpoint. What lies in memory (/dev/shm) is kept by
        the latter alone."""
        if self.channel.closed.is_set():
            raise self.channel.error()
        if processes:
            if self.checkpoints is None:
                raise self._cannot("keep its processes in a snapshot", "checkpoint")
            async with self._one_checkpoint:
                return await to_its_end(asyncio.ensure_future(self._checkpoint(self.checkpoints, name)))
        if self.in_memory:
            raise ConfigError(
                f"The sandbox {self.id} cannot make snapshots: with disk_mib its files lie in memory. "
                "Set needs.resources.disk_mib to null."
            )
        return await image_snapshots.take(self.engine, self.id, name, self.own_snapshots)

    async def _checkpoint(self, checkpoints: Checkpoints, name: str | None) -> str:
        if self.spec.network not in ("none", "endpoint-only"):
            raise ConfigError(
                f"The sandbox {self.id} has the network '{self.spec.network}', whose sockets a snapshot with processes cannot "
                "hold; set needs.network to endpoint-only or none, or leave the processes out."
            )
        draft = await in_thread(checkpoints.draft, name)
        try:
            try:
                await self.channel.part()
            except OSError as error:
                raise SandboxError(f"The sandbox {self.id} could not stand still: {error.strerror}.") from error
            try:
                await self.engine.checkpoint(self.id, draft.archive)
            finally:
                await self._rejoin()
            kept = await in_thread(checkpoints.keep, draft, self.spec)
        except BaseException:
            await in_thread(checkpoints.drop, draft)
            raise
        self.note(f"its files and processes were kept as {kept}")
        return kept

    async def _rejoin(self) -> None:
        """Await the resident's new connection. Where none comes, the sandbox ends."""
        try:
            with suppress(FileNotFoundError):
                (self.control / SOCKET).unlink()  # root in there may have put something in the way
            with listener(self.control / SOCKET) as waiting:
                accepting = asyncio.ensure_future(accepted(waiting, self.resident))
                over = asyncio.ensure_future(self.channel.closed.wait())
                await asyncio.wait([accepting, over], timeout=REJOIN_S, return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
                if not accepting.done():
                    accepting.cancel()
                    raise OSError("it did not come back")
                await self.channel.rejoin(accepting.result())
            (self.control / SOCKET).unlink(missing_ok=True)
        except OSError as error:
            self.begin_stop(f"it was lost while its processes were kept ({error})")
            raise self.channel.error() from error

    async def reset(self, spec: SandboxSpec) -> None:
        if (self.spec.from_snapshot or "").startswith(PREFIX):
            raise UncleanError(
                f"The sandbox {self.id} was started with processes, and cannot be made as new; stop it and start another.",
                "other",
            )
        await super().reset(spec)

    async def first_words(self) -> str:
        return "" if self.stopping is not None else await self.engine.logs(self.id)

    async def take_away(self) -> None:
        """The container ends with its connection; see that it is gone."""
        try:
            await self.engine.remove(self.id)
        finally:
            remove_folder(self.control)


async def accepted(waiting: socket.socket, process: int | None) -> socket.socket:
    """A connection to a listening socket; of this process, where one is named: others in a sandbox may try."""
    while True:
        sock, _ = await asyncio.get_running_loop().sock_accept(waiting)
        if process is None or peer(sock) == process:
            return sock
        sock.close()
