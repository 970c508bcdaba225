"""Replays an expert once to make snapshots: an agent acts on the expert's replies in a sandbox, and the wanted states
of the sandbox are saved.

The replay answers the agent's model calls itself. At each wanted start, the agent waits for its answer while the
snapshot is made; after the last wanted state the agent is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from ale.errors import AgentError, AleError
from ale.messages import Message, ToolSpec
from ale.registry.validation import describe_error
from ale.specs.sandbox import Sandbox
from ale.specs.sandbox_protocols import Snapshots
from ale.specs.scaffold import ModelSession, Scaffold
from ale.specs.start import Reply
from ale.task import Task
from ale.trajectory import Trajectory
from ale_train.starts.expert_replies import ExpertReplies, expert_steps
from ale_train.starts.recording_sandbox import RecordingSandbox
from ale_train.starts.snapshots import Starts, State


class SnapshotReplay:
    """One replay that makes snapshots; `respond` answers in the policy's place."""

    def __init__(self, expert: Trajectory, ignore: Sequence[str], starts: Starts) -> None:
        self._replies = ExpertReplies(expert, len(expert_steps(expert)), ignore)
        self._starts = starts
        self._sandbox: RecordingSandbox | None = None
        self._deadline = asyncio.timeout(None)
        self._fault: AleError | None = None
        self._over = False

    async def run(
        self, scaffold: Scaffold, task: Task, acting: Sandbox, session: ModelSession, timeout_s: float
    ) -> None:
        """Let the agent act until every wanted state is saved, or it ends. Raises the `AleError` that ended it."""
        self._sandbox = RecordingSandbox(acting, self._replies)
        self._deadline = asyncio.timeout(timeout_s)
        error: AleError | None = None
        try:
            async with self._deadline:
                await scaffold.run(task, self._sandbox, session)
        except AleError as fault:
            error = fault
        except TimeoutError:
            error = AgentError(f"the replay took more than rollout.timeout_s={timeout_s:g}")
        except Exception as crash:
            error = AgentError(f"the scaffold crashed: {describe_error(crash)}")
        ended_by = self._fault if self._over else self._sandbox.fault or error or session.fault
        if ended_by is not None:
            raise ended_by

    async def respond(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
        """Return the expert's reply, after the state before it is saved if wanted; None for a side call."""
        assert self._sandbox is not None
        if not self._replies.left:
            await self._end()
        start = self._replies.done
        step = self._replies.next(messages, tools)
        if step is None:
            return None
        try:
            await self._keep(start, self._sandbox, frozenset(tool.name for tool in tools))
        except AleError as fault:
            self._fault = fault
            await self._end()
        if not any(wanted > start for wanted in self._starts.wanted):
            await self._end()
        return Reply(step.reply, step.token_ids)

    async def _keep(self, start: int, sandbox: RecordingSandbox, tools: frozenset[str]) -> None:
        record = sandbox.record()
        if record is None:
            raise AgentError(
                f"it cannot be recorded: {sandbox.unfit or 'the agent asks the model during a sandbox call'}"
            )
        if start in self._starts.wanted:
            inner = sandbox.inner
            assert isinstance(inner, Snapshots), "checked before the replay"
            snapshot = await inner.snapshot()
            self._starts.add(
                State(expert=self._starts.expert, start=start, snapshot=snapshot, record=record, tools=tools)
            )
        self._starts.reached = start

    async def _end(self) -> NoReturn:
        """Cancel the agent, which waits for an answer."""
        self._over = True
        loop = asyncio.get_running_loop()
        self._deadline.reschedule(loop.time())
        await loop.create_future()
        raise AssertionError("the agent was not cancelled")
