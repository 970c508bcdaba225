"""A sandbox when somebody watches: the agent's commands are put to the veto hook, and every command is told of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ale.hooks import Hooks
from ale.specs.events import ExecBy
from ale.specs.sandbox import AGENT, ExecResult, Output, Sandbox, SandboxSpec, SandboxStats, Shell
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
        refused = self._refused(command, stdin)
        if refused is not None:
            return refused
        running = self._inner.exec(
            command, timeout_s=timeout_s, cwd=cwd, env=env, stdin=stdin, user=user, max_output_bytes=max_output_bytes
        )
        return await self._told_of(command, stdin, running)

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
        """As `exec`; the last item is what is told of."""
        refused = self._refused(command, stdin)
        if refused is not None:
            yield Output("stderr", refused.stderr)
            yield replace(refused, stderr=b"")
            return
        result: ExecResult | None = None
        error: str | None = None
        self._tell("ale_exec_started", command, stdin=stdin)
        try:
            items = self._inner.exec_stream(command, timeout_s=timeout_s, cwd=cwd, env=env, stdin=stdin, user=user)
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, ExecResult):
                        result = item
                    yield item
        except BaseException as fault:
            left = isinstance(fault, GeneratorExit)
            error = None if result is not None else "its reader left" if left else _named(fault)
            raise
        finally:
            self._tell("ale_exec_finished", command, result=result, error=error)

    async def open_shell(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str = AGENT
    ) -> Shell:
        """A shell whose commands are asked about and told of as those of `exec` are."""
        return ObservedShell(await self._inner.open_shell(cwd=cwd, env=env, user=user), self)

    def _refused(self, command: str, stdin: bytes) -> ExecResult | None:
        """What the agent sees of a command that an observer refuses."""
        if self._by != "agent":
            return None
        refusal = self._hooks.refusal("ale_before_exec", **self._ids, command=command, stdin=stdin)
        if refusal is None:
            return None
        refused = ExecResult(REFUSED_EXIT_CODE, b"", f"refused: {refusal}\n".encode(), 0.0)
        self._tell("ale_exec_finished", command, result=refused, error=None)
        return refused

    async def _told_of(self, command: str, stdin: bytes, running: Coroutine[Any, Any, ExecResult]) -> ExecResult:
        """Await a command, and tell of it."""
        self._tell("ale_exec_started", command, stdin=stdin)
        try:
            result = await running
        except BaseException as fault:  # cancelled, or the sandbox died: the command is over all the same
            self._tell("ale_exec_finished", command, result=None, error=_named(fault))
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

    async def upload_tree(self, source: Path, target: str, *, user: str = AGENT) -> None:
        """Pass on."""
        await self._inner.upload_tree(source, target, user=user)

    async def download_tree(self, source: str, target: Path, *, max_bytes: int = 1 << 32) -> None:
        """Pass on."""
        await self._inner.download_tree(source, target, max_bytes=max_bytes)

    async def kill_agent_processes(self) -> None:
        """Pass on."""
        await self._inner.kill_agent_processes()

    async def stats(self) -> SandboxStats:
        """Pass on."""
        return await self._inner.stats()

    async def snapshot(self, name: str | None = None) -> str:
        """Pass on."""
        return await self._inner.snapshot(name)

    async def reset(self, spec: SandboxSpec) -> None:
        """Pass on."""
        await self._inner.reset(spec)
        self.spec = self._inner.spec

    async def logs(self) -> str:
        """Pass on."""
        return await self._inner.logs()

    async def stop(self) -> None:
        """Pass on."""
        await self._inner.stop()


class ObservedShell(Shell):
    """Passes commands on to `inner`, as the sandbox that it is in does."""

    def __init__(self, inner: Shell, sandbox: ObservedSandbox) -> None:
        self._inner, self._sandbox = inner, sandbox

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = 1 << 20) -> ExecResult:
        """Ask, run, tell."""
        refused = self._sandbox._refused(command, b"")
        if refused is not None:
            return refused
        running = self._inner.run(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes)
        return await self._sandbox._told_of(command, b"", running)

    async def close(self) -> None:
        """Pass on."""
        await self._inner.close()


def _named(error: BaseException) -> str:
    """What a command's call ended with."""
    return f"{type(error).__name__}: {one_line(error)}"
