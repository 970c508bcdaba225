"""A sandbox when somebody watches: the agent's commands are put to the veto hook, and every command is told of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ale.hooks import Hooks
from ale.rollout.passing import PassingSandbox
from ale.specs.events import ExecBy
from ale.specs.sandbox import ExecResult, Output, Sandbox, Shell
from ale.task import Task
from ale.validation import named

REFUSED_EXIT_CODE = 126
EXEC_HOOKS = ("ale_before_exec", "ale_exec_started", "ale_exec_finished")


class ObservedSandbox(PassingSandbox):
    """Passes everything on to `inner`; a refused command answers with the observer's sentence and exit code 126."""

    def __init__(self, inner: Sandbox, episode_id: str, task: Task, by: ExecBy, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks
        self._ids = {"sandbox_id": inner.id, "episode_id": episode_id, "task": task}
        self._by = by

    async def exec(self, command: str, *, stdin: bytes = b"", **options: Any) -> ExecResult:
        """Ask the observers where it is the agent's, run, tell what came of it."""
        refused = self._refused(command, stdin)
        if refused is not None:
            return refused
        running = super().exec(command, stdin=stdin, **options)
        return await self._told_of(command, stdin, running)

    async def exec_stream(
        self, command: str, *, stdin: bytes = b"", **options: Any
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
            async with aclosing(super().exec_stream(command, stdin=stdin, **options)) as items:
                async for item in items:
                    if isinstance(item, ExecResult):
                        result = item
                    yield item
        except BaseException as fault:
            left = isinstance(fault, GeneratorExit)
            error = None if result is not None else "its reader left" if left else named(fault)
            raise
        finally:
            self._tell("ale_exec_finished", command, result=result, error=error)

    async def open_shell(self, **options: Any) -> Shell:
        """A shell whose commands are asked about and told of as those of `exec` are."""
        return ObservedShell(await super().open_shell(**options), self)

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
            self._tell("ale_exec_finished", command, result=None, error=named(fault))
            raise
        self._tell("ale_exec_finished", command, result=result, error=None)
        return result

    def _tell(self, hook: str, command: str, **more: Any) -> None:
        self._hooks.call(hook, **self._ids, by=self._by, command=command, **more)


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
