"""A sandbox leased from a pool: it works like the sandbox itself, until `stop` gives it back.

Afterwards the lease no longer reaches the sandbox, which may belong to another episode by then. A sandbox given back
during a call is stopped and not reused, so that the call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ale.errors import SandboxError
from ale.rollout.sandbox_wrappers.forwarding import ForwardingSandbox
from ale.specs.sandbox import Sandbox

GiveBack = Callable[[bool], "asyncio.Task[None] | None"]
"""Takes a sandbox back; the argument says whether a call is running. Returns the task that stops it, if it should be
awaited."""


class LeasedSandbox(ForwardingSandbox):
    """Forwards everything to `inner` while it is leased; `logs` includes those of earlier leases."""

    def __init__(self, inner: Sandbox, give_back: GiveBack) -> None:
        super().__init__(inner)
        self._give_back: GiveBack | None = give_back
        self._stopping: asyncio.Task[None] | None = None
        self._under_way = 0

    @contextmanager
    def call(self) -> Iterator[Sandbox]:
        """Return the sandbox for one call. Raises `SandboxError` once it was given back."""
        if self._give_back is None:
            raise SandboxError(f"The sandbox {self.id} is gone: it was stopped. Start another one.")
        self._under_way += 1
        try:
            yield self.inner
        finally:
            self._under_way -= 1

    async def stop(self) -> None:
        """Give the sandbox back. If that stops it, it has ended when this returns."""
        if self._give_back is not None:
            give_back, self._give_back = self._give_back, None
            self._stopping = give_back(self._under_way > 0)
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
