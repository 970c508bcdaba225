"""A sandbox on loan from a pool: it works as the sandbox itself does, until `stop` gives it back.

Afterwards nobody who still holds it reaches the sandbox, which may be another episode's by then. One that is given back while
a call is under way is stopped and not used again, so that the call ends as it must.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path

from ale.errors import SandboxError
from ale.specs.sandbox import AGENT, ExecResult, Output, Sandbox, SandboxSpec, SandboxStats, Shell

GiveBack = Callable[[bool], "asyncio.Task[None] | None"]
"""Takes a sandbox back, and whether a call of it is under way; the task that stops it, where somebody should await that."""


class LeasedSandbox(Sandbox):
    """Passes everything on to `inner` while it is lent out."""

    def __init__(self, inner: Sandbox, give_back: GiveBack) -> None:
        self.id, self.spec = inner.id, inner.spec
        self.inner = inner
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

    @property
    def endpoint_url(self) -> str | None:
        """The sandbox's own."""
        return self.inner.endpoint_url

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str = AGENT,
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        """Pass on."""
        with self.call() as inner:
            return await inner.exec(
                command, timeout_s=timeout_s, cwd=cwd, env=env, stdin=stdin, user=user,
                max_output_bytes=max_output_bytes,
            )  # fmt: skip

    async def exec_stream(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str = AGENT,
    ) -> AsyncGenerator[Output | ExecResult, None]:
        """Pass on."""
        with self.call() as inner:
            pieces = inner.exec_stream(command, timeout_s=timeout_s, cwd=cwd, env=env, stdin=stdin, user=user)
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece

    async def open_shell(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str = AGENT
    ) -> Shell:
        """Pass on; the shell ends with the loan."""
        with self.call() as inner:
            return LeasedShell(self, await inner.open_shell(cwd=cwd, env=env, user=user))

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

    async def snapshot(self, name: str | None = None) -> str:
        """Pass on."""
        with self.call() as inner:
            return await inner.snapshot(name)

    async def reset(self, spec: SandboxSpec) -> None:
        """Pass on."""
        with self.call() as inner:
            await inner.reset(spec)
        self.spec = spec

    async def logs(self) -> str:
        """Pass on; it tells of earlier loans too."""
        with self.call() as inner:
            return await inner.logs()


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
