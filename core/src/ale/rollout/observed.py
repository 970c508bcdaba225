"""A sandbox as the agent gets it when somebody watches: each command is put to the veto hook first."""

from __future__ import annotations

from collections.abc import Mapping

from ale.hooks import Hooks
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxStats
from ale.task import Task

REFUSED_EXIT_CODE = 126


class ObservedSandbox(Sandbox):
    """Passes everything on to `inner`; a refused command answers with the observer's sentence and exit code 126."""

    def __init__(self, inner: Sandbox, task: Task, hooks: Hooks) -> None:
        self.id, self.spec = inner.id, inner.spec
        self._inner, self._task, self._hooks = inner, task, hooks

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
        """Ask the observers, then run."""
        refusal = self._hooks.refusal("ale_before_exec", sandbox_id=self.id, task=self._task, command=command)
        if refusal is not None:
            return ExecResult(REFUSED_EXIT_CODE, b"", f"refused: {refusal}\n".encode(), 0.0)
        return await self._inner.exec(
            command, timeout_s=timeout_s, cwd=cwd, env=env, stdin=stdin, user=user, max_output_bytes=max_output_bytes
        )

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Pass on."""
        await self._inner.upload(files, user=user, mode=mode)

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Pass on."""
        return await self._inner.download(path, max_bytes=max_bytes)

    async def kill_agent_processes(self) -> None:
        """Pass on."""
        await self._inner.kill_agent_processes()

    async def stats(self) -> SandboxStats:
        """Pass on."""
        return await self._inner.stats()

    async def snapshot(self, name: str | None = None) -> str:
        """Pass on."""
        return await self._inner.snapshot(name)

    async def stop(self) -> None:
        """Pass on."""
        await self._inner.stop()
