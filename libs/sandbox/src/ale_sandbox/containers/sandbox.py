"""A sandbox that is a container, and how its resident connects to this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ale.errors import ConfigError, UncleanError
from ale.specs.sandbox import SandboxSpec
from ale.specs.sandbox_protocols import SandboxStats
from ale_sandbox.containers import image_snapshots
from ale_sandbox.containers.checkpoints import PREFIX
from ale_sandbox.containers.engine import Engine
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.memory_watch import peer_pid
from ale_sandbox.host.owned_folders import remove_folder
from ale_sandbox.sandboxes.resettable import ResettableSandbox

SOCKET = "socket"
"""The name of the socket in a container's folder `control`, to which its resident connects."""


async def accept(waiting: socket.socket, process: int | None) -> socket.socket:
    """Accept a connection, if `process` is named only from that process: others in the sandbox may try to connect."""
    while True:
        sock, _ = await asyncio.get_running_loop().sock_accept(waiting)
        if process is None or peer_pid(sock) == process:
            return sock
        sock.close()


class ContainerSandbox(ResettableSandbox):
    """A container that this process owns. `ContainerProvider.start_sandbox` makes it."""

    def __init__(
        self,
        *,
        spec: SandboxSpec,
        name: str,
        channel: Channel,
        engine: Engine,
        resident: int,
        control: Path,
        on_stopped: Callable[[ContainerSandbox], None],
    ) -> None:
        super().__init__(name, spec, channel, on_stopped)
        self.engine = engine
        self.resident, self.control = resident, control
        """The id of its first process, the resident, and the folder with the socket that the resident connects to."""
        self.in_memory = False
        self.own_snapshots: set[str] = set()

    async def stats(self) -> SandboxStats:
        if self.channel.closed.is_set():
            raise self.channel.error()
        found, own = await asyncio.gather(self.engine.stats(self.id), self.usage())
        disk = None if own.disk_bytes is None else own.disk_bytes + (found.disk_bytes or 0)
        return replace(own, memory_bytes=found.memory_bytes, cpu_s=found.cpu_s, pids=found.pids, disk_bytes=disk)

    async def snapshot(self, name: str | None = None) -> str:
        """Save the file system as an image, without the files in memory (/dev/shm)."""
        if self.channel.closed.is_set():
            raise self.channel.error()
        if self.in_memory:
            raise ConfigError(
                f"The sandbox {self.id} cannot make snapshots: with disk_mib its files lie in memory. "
                "Set needs.resources.disk_mib to null."
            )
        return await image_snapshots.take(self.engine, self.id, name, self.own_snapshots)

    async def reset(self, spec: SandboxSpec) -> None:
        if (self.spec.from_snapshot or "").startswith(PREFIX):
            raise UncleanError(
                f"The sandbox {self.id} was started from a checkpoint and cannot be reset; stop it and start another.",
                "other",
            )
        await super().reset(spec)

    async def startup_output(self) -> str:
        return "" if self.stopping is not None else await self.engine.logs(self.id)

    async def clean_up(self) -> None:
        """Remove the container, which ends with its connection."""
        try:
            await self.engine.remove(self.id)
        finally:
            remove_folder(self.control)
