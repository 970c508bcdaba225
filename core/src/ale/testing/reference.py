"""The other parts that a plugin is tested with: small, plain, and real.

`FolderSandbox` really runs commands, in a temporary folder and without any isolation, so tests run only what the kit
itself brings. `session` opens a session of the real endpoint over `CannedEngine`, whose policy says what it is told to.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ale.endpoint.session import EndpointSession, ModelEndpoint
from ale.endpoint.tokenizer import byte_tokenizer
from ale.errors import SandboxError
from ale.hooks import Hooks
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Sampling, Tokenizer
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxSpec
from ale.task import Task

CLEARED = "(kill_agent_processes)"
"""Stands among the commands where `kill_agent_processes` was called."""


class FolderSandbox(Sandbox):
    """A temporary folder; commands run there as this user. `die()` makes it a dead sandbox."""

    def __init__(self, task: Task | None = None) -> None:
        self.id = f"folder-{os.urandom(4).hex()}"
        self.spec = SandboxSpec(network="full")
        self.folder = Path(tempfile.mkdtemp(prefix="ale-kit-"))
        self.commands: list[str] = []
        self._env = {**os.environ, "HOME": str(self.folder), "TMPDIR": str(self.folder), **(task.env if task else {})}
        self._running: set[int] = set()
        self._alive = True
        for path, text in (task.files if task else {}).items():
            self._write(path, text.encode(), 0o644)

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
                "/bin/sh", "-c", command.encode("utf-8", "surrogatepass"), cwd=self.folder / (cwd or "."), env={**self._env, **(env or {})},
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )  # fmt: skip
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


class CannedEngine(InferenceEngine):
    """Says `answers` in turn, the last one for ever; an exception among them is raised."""

    def __init__(self, answers: Sequence[str | Exception]) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.answers = answers
        self.calls = 0
        self.tokenizer: Tokenizer = byte_tokenizer()

    @property
    def max_context(self) -> int:
        """Large."""
        return 1 << 20

    @property
    def version(self) -> int:
        """Always the first."""
        return 0

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """Needs none."""

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Needs none."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """The next answer."""
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        ids = tuple(
            [*self.tokenizer.encode(answer), *request.sampling.stop_token_ids[:1]][: request.sampling.max_tokens]
        )
        stopped = bool(ids) and ids[-1] in request.sampling.stop_token_ids
        return Generation(ids, (-0.1,) * len(ids), (0,) * len(ids), "stop" if stopped else "length")


@asynccontextmanager
async def session(
    answers: Sequence[str | Exception], *, max_calls: int = 12, max_context: int = 60_000
) -> AsyncIterator[EndpointSession]:
    """A model session, over HTTP too, whose policy gives these answers."""
    from ale.endpoint.http import serve

    endpoint = ModelEndpoint(byte_tokenizer(), CannedEngine(answers), Hooks())
    async with serve(endpoint):
        opened = endpoint.open("kit", Sampling(max_tokens=4096), max_calls=max_calls, max_context=max_context)
        try:
            yield opened
        finally:
            endpoint.close(opened)
