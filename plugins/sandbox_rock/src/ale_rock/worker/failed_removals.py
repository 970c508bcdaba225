"""Sandboxes whose removal failed. It is tried again until they are gone, also without another request."""

from __future__ import annotations

import asyncio
import logging

from ale.errors import AleError
from ale.specs.sandbox import SandboxProvider

log = logging.getLogger("ale.rock.worker")
AGAIN_S, MOST_AGAIN_S = 1.0, 60.0


class FailedRemovals:
    """The sandboxes that a worker's provider could not remove yet."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self._own_ids: dict[str, str] = {}
        """The provider's ids by the worker's ids."""
        self._task: asyncio.Task[None] | None = None

    @property
    def ids(self) -> list[str]:
        """The worker's ids of these sandboxes."""
        return list(self._own_ids)

    def add(self, sandbox_id: str, own_id: str) -> None:
        """Take in a sandbox whose removal failed."""
        self._own_ids[sandbox_id] = own_id
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._remove_all())

    async def remove(self, sandbox_id: str) -> None:
        """Try again now; other ids are ignored. Raises as the provider does."""
        own_id = self._own_ids.get(sandbox_id)
        if own_id is not None:
            await self._provider.remove(own_id)
            self._own_ids.pop(sandbox_id, None)

    async def _remove_all(self) -> None:
        pause_s = AGAIN_S
        while self._own_ids:
            await asyncio.sleep(pause_s)
            pause_s = min(MOST_AGAIN_S, 2 * pause_s)
            for sandbox_id in self.ids:
                try:
                    await self.remove(sandbox_id)
                except (AleError, OSError) as error:
                    log.warning("The sandbox %s is still not removed: %s", sandbox_id, error)

    async def close(self) -> None:
        """Stop trying; the provider removes all its sandboxes when it closes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
