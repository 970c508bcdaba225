"""Sandboxes that are nothing but objects, for faults that a real provider cannot be made to show when a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ale.errors import SandboxError, UncleanError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxInfo, SandboxProvider, SandboxSpec


class MemoryBox(Sandbox):
    """Keeps what was written to it."""

    def __init__(self, provider: MemoryProvider, number: int, spec: SandboxSpec) -> None:
        self.id, self.spec, self.provider = spec.id or f"box-{number}", spec, provider
        self.files = dict(spec.files)
        self.dead = False

    def check(self) -> None:
        """Raise where it is stopped or dead."""
        if self.dead or self not in self.provider.alive:
            raise SandboxError(f"The sandbox {self.id} is gone.")

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
        """`wait` waits for ever, anything else says the environment."""
        self.check()
        if command == "wait":
            while True:
                await asyncio.sleep(0.001)
                self.check()
        return ExecResult(0, repr(sorted(self.spec.env.items())).encode(), b"", 0.0)

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        self.check()
        self.files |= files

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        self.check()
        return self.files[path]

    async def kill_agent_processes(self) -> None:
        self.check()

    async def reset(self, spec: SandboxSpec) -> None:
        await asyncio.sleep(0)
        await self.provider.resets.wait()
        self.check()
        if self.provider.unclean:
            raise UncleanError("files: '/tmp/x' is left", self.provider.unclean.pop())
        self.spec, self.files = spec, dict(spec.files)

    async def stop(self) -> None:
        await asyncio.sleep(self.provider.stop_s)
        self.provider.alive.discard(self)


class MemoryProvider(SandboxProvider):
    """Starts them; what is to go wrong is set on it."""

    capabilities = frozenset({"reset", "network_none"})
    box: type[MemoryBox] = MemoryBox

    def __init__(self, **more: object) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        tell: Callable[..., None] = lambda kind, **data: self.events.append((kind, data))  # noqa: E731
        super().__init__(PluginConfig(), DriverContext(event=tell))
        self.alive: set[MemoryBox] = set()
        self.starting = self.most_starting = self.most = self.started = 0
        self.failures: list[Exception] = []
        """Errors of the next starts."""
        self.unclean: list[str] = []
        """What the next resets find."""
        self.gate = asyncio.Event()
        """Starts wait for it."""
        self.gate.set()
        self.resets = asyncio.Event()
        """Resets wait for it."""
        self.resets.set()
        self.stop_s = 0.0

    async def start_sandbox(self, spec: SandboxSpec) -> MemoryBox:
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        self.most = max(self.most, self.starting + len(self.alive))
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
            if self.failures:
                raise self.failures.pop()
            self.started += 1
            box = self.box(self, self.started, spec)
            self.alive.add(box)
            return box
        finally:
            self.starting -= 1

    async def list(self) -> list[SandboxInfo]:
        return [SandboxInfo(box.id, box.spec.labels, 0.0, not box.dead) for box in self.alive]

    async def remove(self, sandbox_id: str) -> None:
        self.alive = {box for box in self.alive if box.id != sandbox_id}
