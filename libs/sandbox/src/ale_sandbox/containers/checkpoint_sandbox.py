"""A container sandbox that can be checkpointed: its running processes continue in sandboxes started from there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from ale.errors import ConfigError, SandboxError
from ale_sandbox.containers.checkpoints import CheckpointStore
from ale_sandbox.containers.sandbox import SOCKET, ContainerSandbox, accept
from ale_sandbox.host.threads import await_completion, in_thread
from ale_sandbox.host.unix_socket import listener

RECONNECT_S = 20.0


class CheckpointSandbox(ContainerSandbox):
    """Has the protocol `Checkpoints`. `ContainerProvider.start_sandbox` makes it if the engine can checkpoint."""

    checkpoints: CheckpointStore
    """The provider's store, where the checkpoints are kept."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._one_checkpoint = asyncio.Lock()

    async def checkpoint(self, name: str | None = None) -> str:
        """Save the file system, the files in memory (/dev/shm) and the running processes."""
        if self.channel.closed.is_set():
            raise self.channel.error()
        async with self._one_checkpoint:
            return await await_completion(asyncio.ensure_future(self._checkpoint(self.checkpoints, name)))

    async def _checkpoint(self, checkpoints: CheckpointStore, name: str | None) -> str:
        if self.spec.network not in ("none", "endpoint-only"):
            raise ConfigError(
                f"The sandbox {self.id} has the network '{self.spec.network}', whose sockets a snapshot with processes "
                "cannot hold; set needs.network to endpoint-only or none, or take a snapshot without processes."
            )
        draft = await in_thread(checkpoints.draft, name)
        try:
            try:
                await self.channel.disconnect()
            except OSError as error:
                raise SandboxError(
                    f"The sandbox {self.id} could not be disconnected for a checkpoint: {error.strerror}."
                ) from error
            try:
                await self.engine.checkpoint(self.id, draft.archive)
            finally:
                await self._reconnect()
            kept = await in_thread(checkpoints.keep, draft, self.spec)
        except BaseException:
            await in_thread(checkpoints.drop, draft)
            raise
        self.note(f"its files and processes were saved as {kept}")
        return kept

    async def _reconnect(self) -> None:
        """Wait for the resident's new connection. If none comes, the sandbox is stopped."""
        try:
            with suppress(FileNotFoundError):
                (self.control / SOCKET).unlink()  # root in the sandbox may have put something there
            with listener(self.control / SOCKET) as waiting:
                accepting = asyncio.ensure_future(accept(waiting, self.resident))
                over = asyncio.ensure_future(self.channel.closed.wait())
                await asyncio.wait([accepting, over], timeout=RECONNECT_S, return_when=asyncio.FIRST_COMPLETED)
                over.cancel()
                if not accepting.done():
                    accepting.cancel()
                    raise OSError("its resident did not reconnect")
                await self.channel.reconnect(accepting.result())
            (self.control / SOCKET).unlink(missing_ok=True)
        except OSError as error:
            self.begin_stop(f"it was lost during a checkpoint ({error})")
            raise self.channel.error() from error
