"""Notices at once when a sandbox ends by itself.

1. The sandboxes of ALE's own providers have a resident, whose connection closes with the sandbox. Waiting for that
   costs nothing.
2. Other sandboxes are looked for in the provider's list, once a second for all of them together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ale.errors import AleError
from ale.specs.sandbox import Sandbox, SandboxProvider
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

log = logging.getLogger("ale.rock.worker")
LOOK_S = 1.0
Ended = Callable[[str, Sandbox, str], None]


class LifeWatch:
    """Calls `ended(name, sandbox, reason)` once for each watched sandbox that ends."""

    def __init__(self, provider: SandboxProvider, ended: Ended) -> None:
        self._provider, self._ended = provider, ended
        self._waits: dict[str, asyncio.Task[None]] = {}
        self._listed: dict[str, Sandbox] = {}
        self._looking: asyncio.Task[None] | None = None

    def watch(self, name: str, sandbox: Sandbox) -> None:
        """Watch a sandbox from now on, by the worker's id for it."""
        if isinstance(sandbox, ResidentSandbox):
            self._waits[name] = asyncio.create_task(self._wait(name, sandbox))
            return
        self._listed[name] = sandbox
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

    def unwatch(self, name: str) -> None:
        """Stop watching a sandbox that is being stopped."""
        self._listed.pop(name, None)
        wait = self._waits.pop(name, None)
        if wait is not None:
            wait.cancel()

    async def close(self) -> None:
        """Stop watching all sandboxes."""
        tasks = [*self._waits.values(), *filter(None, [self._looking])]
        self._waits.clear()
        self._listed.clear()
        self._looking = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, name: str, sandbox: ResidentSandbox) -> None:
        await sandbox.channel.closed.wait()
        self._waits.pop(name, None)
        self._ended(name, sandbox, sandbox.channel.reason)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            watched = dict(self._listed)
            try:
                alive = {info.id for info in await self._provider.list() if info.alive} if watched else set()
            except (AleError, OSError) as error:
                log.warning("The provider does not list its sandboxes: %s", error)
                continue
            for name, sandbox in watched.items():
                if sandbox.id not in alive and self._listed.pop(name, None) is not None:
                    self._ended(name, sandbox, "its provider lists it no more")
