"""A sandbox on loan from a pool: it works as the sandbox itself does, until `stop` gives it back.

Afterwards nobody who still holds it reaches the sandbox, which may be another episode's by then. One that is given back while
a call is under way is stopped and not used again, so that the call ends as it must.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ale.errors import SandboxError
from ale.rollout.passing import PassingSandbox
from ale.specs.sandbox import ExecResult, Sandbox, Shell

GiveBack = Callable[[bool], "asyncio.Task[None] | None"]
"""Takes a sandbox back, and whether a call of it is under way; the task that stops it, where somebody should await that."""


class LeasedSandbox(PassingSandbox):
    """Passes everything on to `inner` while it is lent out; `logs` tells of earlier loans too."""

    def __init__(self, inner: Sandbox, give_back: GiveBack) -> None:
        super().__init__(inner)
        self._give_back: GiveBack | None = give_back
        self._stopping: asyncio.Task[None] | None = None
        self._under_way = 0

    @contextmanager
    def call(self) -> Iterator[Sandbox]:
        """The sandbox, for one call. Raises `SandboxError` once it was given back."""
        if self._give_back is None:
            raise SandboxError(f"The sandbox {self.id} is gone: it was stopped. Start another one.")
        self._under_way += 1
        try:
            yield self.inner
        finally:
            self._under_way -= 1

    async def stop(self) -> None:
        """Give it back. Where that ends the sandbox, it has ended when this returns."""
        if self._give_back is not None:
            give_back, self._give_back = self._give_back, None
            self._stopping = give_back(self._under_way > 0)
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def open_shell(self, **options: Any) -> Shell:
        """Pass on; the shell ends with the loan."""
        return LeasedShell(self, await super().open_shell(**options))


class LeasedShell(Shell):
    """A shell that ends with the loan of its sandbox."""

    def __init__(self, sandbox: LeasedSandbox, inner: Shell) -> None:
        self._sandbox, self._inner = sandbox, inner

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = 1 << 20) -> ExecResult:
        """Pass on."""
        with self._sandbox.call():
            return await self._inner.run(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes)

    async def close(self) -> None:
        """Pass on; nothing is left to close once the sandbox was given back."""
        try:
            with self._sandbox.call():
                await self._inner.close()
        except SandboxError:
            return
