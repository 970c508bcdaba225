"""A sandbox when somebody watches: the agent's commands are put to the veto hook, and every command is told of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ale.hooks import Hooks
from ale.specs.events import ExecBy
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxStats
from ale.task import Task
from ale.validation import one_line

REFUSED_EXIT_CODE = 126
EXEC_HOOKS = ("ale_before_exec", "ale_exec_started", "ale_exec_finished")


class ObservedSandbox(Sandbox):
    """Passes everything on to `inner`; a refused command answers with the observer's sentence and exit code 126."""

    def __init__(self, inner: Sandbox, episode_id: str, task: Task, by: ExecBy, hooks: Hooks) -> None:
        self.id, self.spec = inner.id, inner.spec
        self._inner, self._hooks = inner, hooks
        self._ids = {"sandbox_id": inner.id, "episode_id": episode_id, "task": task}
        self._by = by

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
        """Ask the observers where it is the agent's, run, tell what came of it."""
        if self._by == "agent":
            refusal = self._hooks.refusal("ale_before_exec", **self._ids, command=command, stdin=stdin)
            if refusal is not None:
                refused = ExecResult(REFUSED_EXIT_CODE, b"", f"refused: {refusal}\n".encode(), 0.0)
                self._tell("ale_exec_finished", command, result=refused, error=None)
                return refused
        self._tell("ale_exec_started", command, stdin=stdin)
        try:
            result = await self._inner.exec(
                command, timeout_s=timeout_s, cwd=cwd, env=env, stdin=stdin, user=user,
                max_output_bytes=max_output_bytes,
            )  # fmt: skip
        except BaseException as error:  # cancelled, or the sandbox died: the command is over all the same
            self._tell("ale_exec_finished", command, result=None, error=f"{type(error).__name__}: {one_line(error)}")
            raise
        self._tell("ale_exec_finished", command, result=result, error=None)
        return result

    def _tell(self, hook: str, command: str, **more: Any) -> None:
        self._hooks.call(hook, **self._ids, by=self._by, command=command, **more)

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
