"""A local sandbox that bubblewrap isolates: it can be reset, and it can make snapshots."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ale.errors import UncleanError
from ale.specs.sandbox import SandboxSpec
from ale_local import sandbox_records
from ale_local.sandbox import LocalSandbox
from ale_local.snapshot_store import HeldSnapshot, check_name
from ale_local.snapshots import SnapshotMaker
from ale_sandbox.sandboxes.resettable import ResettableSandbox


class IsolatedSandbox(LocalSandbox, ResettableSandbox):
    """Has the protocols `Snapshots` and `Resets`."""

    snapshot_maker: SnapshotMaker
    """Makes its snapshots."""
    held: HeldSnapshot | None = None
    """The snapshot that the sandbox was started from."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._one_snapshot = asyncio.Lock()

    async def snapshot(self, name: str | None = None) -> str:
        """Save the work folder, the home folder and /tmp, but not /dev/shm. See `snapshots.py`."""
        if self.channel.closed.is_set():
            raise self.channel.error()
        check_name(name)
        async with self._one_snapshot:
            return await self.snapshot_maker.take(self.channel, name)

    async def reset(self, spec: SandboxSpec) -> None:
        if self.spec.from_snapshot is not None:
            raise UncleanError(
                f"The sandbox {self.id} was started from a snapshot and cannot be reset; stop it and start another.",
                "other",
            )
        await super().reset(spec)
        self.record = replace(self.record, labels=self.labels)
        sandbox_records.write(self.folder, self.record)

    async def clean_up(self) -> None:
        """Clean up as without isolation, then release the snapshot."""
        await super().clean_up()
        if self.held is not None:
            self.held.close()
            await asyncio.to_thread(
                self.snapshot_maker.layers.collect
            )  # its snapshot may have been removed or replaced meanwhile
