"""These sandboxes for tests need no real provider.

1. `FolderSandbox` really runs commands, in a temporary folder and without any isolation, so tests must run only their
   own commands in it. `FolderProvider` starts such ones.
2. `MemoryProvider` starts sandboxes that are only objects in memory. Tests use it for faults that a real provider
   cannot produce on demand.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ale.errors import SandboxError, UncleanError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxInfo, SandboxProvider, SandboxSpec
from ale.task import Task, as_bytes
from ale_testing.recording_channel import RecordingChannel

CLEARED = "(kill_agent_processes)"
"""Stands among the commands where `kill_agent_processes` was called."""


class FolderSandbox(Sandbox):
    """A temporary folder; commands run there as this user. `die()` makes it a dead sandbox."""

    def __init__(self, task: Task | None = None, spec: SandboxSpec | None = None) -> None:
        self.id = f"folder-{os.urandom(4).hex()}"
        self.spec = spec or SandboxSpec(
            network="full",
            env=task.env if task else {},
            files={path: as_bytes(content) for path, content in (task.files if task else {}).items()},
        )
        self.folder = Path(tempfile.mkdtemp(prefix="ale-kit-"))
        self.commands: list[str] = []
        self._env = {**os.environ, "HOME": str(self.folder), "TMPDIR": str(self.folder), **self.spec.env}
        self._running: set[int] = set()
        self._alive = True
        self.refused = 0
        """Calls that found it dead."""
        for path, data in self.spec.files.items():
            self._write(path, data, 0o644)

    def die(self) -> None:
        """From now on nothing works, and what runs is killed: as when a machine is lost."""
        self._alive = False
        for group in self._running:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    @property
    def running(self) -> int:
        """Commands under way."""
        return len(self._running)

    def _check(self) -> None:
        if not self._alive:
            self.refused += 1
            raise SandboxError(f"The sandbox {self.id} is gone.")

    def _write(self, path: str, data: bytes, mode: int) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode)

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
        """Run in a process group of its own, and end the group whatever happens."""
        self._check()
        self.commands.append(command)
        began = time.monotonic()
        child = await self._child(command, cwd, env)
        self._running.add(child.pid)
        timed_out, out, err = False, b"", b""
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await child.communicate(stdin)
        except TimeoutError:
            timed_out = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            self._running.discard(child.pid)
            await child.wait()
        self._check()
        code = 124 if timed_out else child.returncode or 0
        cut = max(len(out), len(err)) > max_output_bytes
        out, err = out[:max_output_bytes], err[:max_output_bytes]
        return ExecResult(code if code >= 0 else 128 - code, out, err, time.monotonic() - began, timed_out, cut)

    async def _child(self, command: str, cwd: str | None, env: Mapping[str, str] | None) -> asyncio.subprocess.Process:
        """Start the command. asyncio can wait for ever where *this* is cancelled in its middle: so it is not."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                command.encode("utf-8", "surrogatepass"),
                cwd=self.folder / (cwd or "."),
                env={**self._env, **(env or {})},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            child = await starting
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.communicate()
            raise

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Write files."""
        self._check()
        for path, data in files.items():
            self._write(path, data, mode)

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Read a file."""
        self._check()
        return (self.folder / path).read_bytes()

    async def kill_agent_processes(self) -> None:
        """Nothing outlives its command here; that it was asked for is noted."""
        self._check()
        self.commands.append(CLEARED)

    async def stop(self) -> None:
        """Remove the folder."""
        self.die()
        shutil.rmtree(self.folder, ignore_errors=True)


class FolderProvider(Driver, SandboxProvider):
    """Starts folder sandboxes."""

    capabilities = frozenset({"network_full"})
    sandbox_type = FolderSandbox

    def __init__(self) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.alive: list[FolderSandbox] = []

    async def start_sandbox(self, spec: SandboxSpec) -> FolderSandbox:
        """A folder with the files of the spec. Its programs reach the model's endpoint as every program here does."""
        self.alive.append(FolderSandbox(spec=spec.model_copy(update={"endpoint": None})))
        return self.alive[-1]

    async def list(self) -> list[SandboxInfo]:
        """Those that were not stopped."""
        return [SandboxInfo(box.id, box.spec.labels, 0.0, True) for box in self.alive if box.folder.exists()]

    async def remove(self, sandbox_id: str) -> None:
        """Stop one."""
        for box in self.alive:
            if box.id == sandbox_id:
                await box.stop()

    async def close(self) -> None:
        """Stop all of them."""
        for box in self.alive:
            await box.stop()


class MemorySandbox(Sandbox):
    """Keeps the files that were written to it, and runs nothing."""

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
        """The command `wait` waits for ever; every other prints the environment."""
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


class MemoryProvider(Driver, SandboxProvider):
    """Starts sandboxes in memory; a test sets on it what is to go wrong."""

    capabilities = frozenset({"network_none"})
    sandbox_type = MemorySandbox
    box: type[MemorySandbox] = MemorySandbox

    def __init__(self, **more: object) -> None:
        channel = RecordingChannel()
        self.events = channel.events
        super().__init__(PluginConfig(), DriverContext(channel=channel))
        self.alive: set[MemorySandbox] = set()
        self.starting = self.most_starting = self.most = self.started = 0
        self.failures: list[Exception] = []
        """Errors of the next starts."""
        self.unclean: list[str] = []
        """What the next resets find left over."""
        self.gate = asyncio.Event()
        """Starts wait for it."""
        self.gate.set()
        self.resets = asyncio.Event()
        """Resets wait for it."""
        self.resets.set()
        self.stop_s = 0.0

    async def start_sandbox(self, spec: SandboxSpec) -> MemorySandbox:
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
