"""A sandbox around another one: every call is passed on. Who wants more of some calls than that overrides those."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

from ale.specs.sandbox import AGENT, ExecResult, Output, Sandbox, SandboxSpec, SandboxStats, Shell


class PassingSandbox(Sandbox):
    """Passes everything on to `inner`."""

    def __init__(self, inner: Sandbox) -> None:
        self.id, self.spec = inner.id, inner.spec
        self.inner = inner

    @contextmanager
    def call(self) -> Iterator[Sandbox]:
        """The inner sandbox, for one call."""
        yield self.inner

    @property
    def endpoint_url(self) -> str | None:
        """Pass on."""
        return self.inner.endpoint_url

    async def exec(self, command: str, **options: Any) -> ExecResult:
        """Pass on."""
        with self.call() as inner:
            return await inner.exec(command, **options)

    async def exec_stream(self, command: str, **options: Any) -> AsyncGenerator[Output | ExecResult, None]:
        """Pass on; who leaves this leaves that too."""
        with self.call() as inner:
            async with aclosing(inner.exec_stream(command, **options)) as items:
                async for item in items:
                    yield item

    async def open_shell(self, **options: Any) -> Shell:
        """Pass on."""
        with self.call() as inner:
            return await inner.open_shell(**options)

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Pass on."""
        with self.call() as inner:
            await inner.upload(files, user=user, mode=mode)

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Pass on."""
        with self.call() as inner:
            return await inner.download(path, max_bytes=max_bytes)

    async def upload_tree(self, source: Path, target: str, *, user: str = AGENT) -> None:
        """Pass on."""
        with self.call() as inner:
            await inner.upload_tree(source, target, user=user)

    async def download_tree(self, source: str, target: Path, *, max_bytes: int = 1 << 32) -> None:
        """Pass on."""
        with self.call() as inner:
            await inner.download_tree(source, target, max_bytes=max_bytes)

    async def kill_agent_processes(self) -> None:
        """Pass on."""
        with self.call() as inner:
            await inner.kill_agent_processes()

    async def stats(self) -> SandboxStats:
        """Pass on."""
        with self.call() as inner:
            return await inner.stats()

    async def snapshot(self, name: str | None = None, **options: Any) -> str:
        """Pass on."""
        with self.call() as inner:
            return await inner.snapshot(name, **options)

    async def reset(self, spec: SandboxSpec) -> None:
        """Pass on."""
        with self.call() as inner:
            await inner.reset(spec)
        self.spec = spec

    async def logs(self) -> str:
        """Pass on."""
        with self.call() as inner:
            return await inner.logs()

    async def stop(self) -> None:
        """Pass on."""
        await self.inner.stop()
