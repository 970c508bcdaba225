"""The sandbox as a reward gets it: it forwards every call, and can start another sandbox beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from ale.specs.reward import GradedSandbox
from ale.specs.sandbox import AGENT, ExecResult, Sandbox
from ale.specs.sandbox_protocols import SANDBOX_METHODS


class Graded(GradedSandbox):
    """The sandbox in which the agent worked, with its protocols."""

    def __init__(self, inner: Sandbox, open_another: Callable[[], AbstractAsyncContextManager[Sandbox]]) -> None:
        self.id, self.spec, self._inner, self._open_another = inner.id, inner.spec, inner, open_another
        for name in SANDBOX_METHODS:
            if hasattr(inner, name):  # set on the instance, which is enough for `isinstance` with a protocol
                setattr(self, name, getattr(inner, name))

    def open_another(self) -> AbstractAsyncContextManager[Sandbox]:
        return self._open_another()

    @property
    def endpoint_url(self) -> str | None:
        return self._inner.endpoint_url

    async def exec(self, command: str, **options: Any) -> ExecResult:
        return await self._inner.exec(command, **options)

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        await self._inner.upload(files, user=user, mode=mode)

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        return await self._inner.download(path, max_bytes=max_bytes)

    async def kill_agent_processes(self) -> None:
        await self._inner.kill_agent_processes()

    async def stop(self) -> None:
        await self._inner.stop()
