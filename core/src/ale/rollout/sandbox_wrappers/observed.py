"""A sandbox with observers: the veto hook is asked about the agent's commands, and every command is reported."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ale.registry.hooks import Hooks
from ale.registry.validation import describe_error
from ale.rollout.sandbox_wrappers.forwarding import ForwardingSandbox, ForwardingShell
from ale.specs.events import ExecBy
from ale.specs.sandbox import ExecResult, Sandbox
from ale.specs.sandbox_protocols import Output, Shell
from ale.task import Task

REFUSED_EXIT_CODE = 126


class ObservedSandbox(ForwardingSandbox):
    """It forwards everything to `inner`; a refused command answers with the observer's sentence and exit code 126."""

    def __init__(self, inner: Sandbox, episode_id: str, task: Task, by: ExecBy, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks
        self._ids: dict[str, Any] = {"sandbox_id": inner.id, "episode_id": episode_id, "task": task}
        self._by = by

    async def exec(self, command: str, *, stdin: bytes = b"", **options: Any) -> ExecResult:
        """Ask the observers about an agent's command, run it, and report its result."""
        refused = self._ask_observers(command, stdin)
        if refused is not None:
            return refused
        running = super().exec(command, stdin=stdin, **options)
        return await self._run_and_report(command, stdin, running)

    async def _exec_stream(
        self, command: str, *, stdin: bytes = b"", **options: Any
    ) -> AsyncGenerator[Output | ExecResult, None]:
        """Do as `exec` does; the last item is reported to the observers."""
        refused = self._ask_observers(command, stdin)
        if refused is not None:
            yield Output("stderr", refused.stderr)
            yield replace(refused, stderr=b"")
            return
        result: ExecResult | None = None
        error: str | None = None
        self._report("ale_exec_started", command, stdin=stdin)
        try:
            async with aclosing(super()._exec_stream(command, stdin=stdin, **options)) as items:
                async for item in items:
                    if isinstance(item, ExecResult):
                        result = item
                    yield item
        except BaseException as fault:
            left = isinstance(fault, GeneratorExit)
            error = None if result is not None else "its reader left" if left else describe_error(fault)
            raise
        finally:
            self._report("ale_exec_finished", command, result=result, error=error)

    def _around(self, shell: Shell) -> Shell:
        return ObservedShell(self, shell)

    def _ask_observers(self, command: str, stdin: bytes) -> ExecResult | None:
        """Return what the agent sees if an observer refuses the command; else None."""
        if self._by != "agent":
            return None
        refusal = self._hooks.veto_reason("ale_before_exec", **self._ids, command=command, stdin=stdin)
        if refusal is None:
            return None
        refused = ExecResult(REFUSED_EXIT_CODE, b"", f"refused: {refusal}\n".encode(), 0.0)
        self._report("ale_exec_finished", command, result=refused, error=None)
        return refused

    async def _run_and_report(self, command: str, stdin: bytes, running: Coroutine[Any, Any, ExecResult]) -> ExecResult:
        """Await a command, and report it."""
        self._report("ale_exec_started", command, stdin=stdin)
        try:
            result = await running
        except BaseException as fault:  # cancelled, or the sandbox died: the command has ended in both cases
            self._report("ale_exec_finished", command, result=None, error=describe_error(fault))
            raise
        self._report("ale_exec_finished", command, result=result, error=None)
        return result

    def _report(self, hook: str, command: str, **more: Any) -> None:
        self._hooks.call(hook, **self._ids, by=self._by, command=command, **more)


class ObservedShell(ForwardingShell):
    """A shell whose commands are reported to the observers like those of its sandbox."""

    def __init__(self, sandbox: ObservedSandbox, inner: Shell) -> None:
        super().__init__(sandbox, inner)
        self._observed = sandbox

    async def run(self, command: str, **options: Any) -> ExecResult:
        """Ask the observers, run, and report."""
        refused = self._observed._ask_observers(command, b"")
        if refused is not None:
            return refused
        return await self._observed._run_and_report(command, b"", super().run(command, **options))
