"""A sandbox that wraps another one: it forwards every call and has the protocols of the inner one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from ale.errors import SandboxError
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import SANDBOX_METHODS, Output, Shell, Shells, Streams


class ForwardingSandbox(Sandbox):
    """It forwards everything to `inner`. A subclass overrides `call` to change every call, or a single method (those of
    protocols begin with `_`: they are visible only if `inner` has them)."""

    def __init__(self, inner: Sandbox) -> None:
        self.id, self.spec = inner.id, inner.spec
        self.inner = inner
        for name in SANDBOX_METHODS:
            if hasattr(inner, name):  # set on the instance, which is enough for `isinstance` with a protocol
                setattr(self, name, getattr(self, f"_{name}", None) or self._forward_method(name))

    @contextmanager
    def call(self) -> Iterator[Sandbox]:
        """Yield the inner sandbox for one call."""
        yield self.inner

    @property
    def endpoint_url(self) -> str | None:
        return self.inner.endpoint_url

    async def exec(self, command: str, **options: Any) -> ExecResult:
        with self.call() as inner:
            return await inner.exec(command, **options)

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        with self.call() as inner:
            await inner.upload(files, user=user, mode=mode)

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        with self.call() as inner:
            return await inner.download(path, max_bytes=max_bytes)

    async def kill_agent_processes(self) -> None:
        with self.call() as inner:
            await inner.kill_agent_processes()

    async def stop(self) -> None:
        await self.inner.stop()

    # --- methods of protocols

    def _forward_method(self, name: str) -> Any:
        """Return a method of a protocol that is forwarded unchanged."""

        async def method(*args: Any, **options: Any) -> Any:
            with self.call() as inner:
                return await getattr(inner, name)(*args, **options)

        return method

    async def _reset(self, spec: SandboxSpec) -> None:
        await self._forward_method("reset")(spec)
        self.spec = spec

    async def _exec_stream(self, command: str, **options: Any) -> AsyncGenerator[Output | ExecResult, None]:
        """Forward the stream; a reader that stops also ends the inner stream."""
        with self.call() as inner:
            assert isinstance(inner, Streams)
            async with aclosing(inner.exec_stream(command, **options)) as items:
                async for item in items:
                    yield item

    async def _open_shell(self, **options: Any) -> Shell:
        with self.call() as inner:
            assert isinstance(inner, Shells)
            return self._around(await inner.open_shell(**options))

    def _around(self, shell: Shell) -> Shell:
        return ForwardingShell(self, shell)


class ForwardingShell(Shell):
    """A shell of a forwarding sandbox: its commands go through the sandbox's `call`, too."""

    def __init__(self, sandbox: ForwardingSandbox, inner: Shell) -> None:
        self._sandbox, self._inner = sandbox, inner

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = 1 << 20) -> ExecResult:
        with self._sandbox.call():
            return await self._inner.run(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes)

    async def close(self) -> None:
        with suppress(SandboxError), self._sandbox.call():  # the shell ended with the sandbox
            await self._inner.close()
