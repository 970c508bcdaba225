"""A walk along an expert: its agent acts on the expert's replies in a sandbox, of which the states that are wanted are kept.

The walk answers the agent's model calls itself. Where a call is the policy's in a rollout that starts there, the agent waits for its
answer while the snapshot is made; behind the last state that is wanted it gets none, and is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from ale.endpoint.prefill import Prefill, expert_steps
from ale.endpoint.session import EndpointSession
from ale.errors import AgentError, AleError
from ale.messages import Message, ToolSpec
from ale.rollout.replayed import RecordingSandbox
from ale.rollout.states import Starts, State
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import Scaffold
from ale.task import Task
from ale.trajectory import Trajectory
from ale.validation import named


class Walk:
    """One walk; `respond` answers in the policy's place."""

    def __init__(self, expert: Trajectory, ignore: Sequence[str], starts: Starts) -> None:
        self._prefill = Prefill(expert, len(expert_steps(expert)), ignore)
        self._starts = starts
        self._sandbox: RecordingSandbox | None = None
        self._deadline = asyncio.timeout(None)
        self._fault: AleError | None = None
        self._over = False

    async def run(
        self, scaffold: Scaffold, task: Task, acting: Sandbox, session: EndpointSession, timeout_s: float
    ) -> None:
        """Let the agent act until every state that is wanted is kept, or it can do no more. Raises the `AleError` that ended it."""
        self._sandbox = RecordingSandbox(acting, self._prefill)
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
            error = AgentError(f"the scaffold crashed: {named(crash)}")
        ended_by = self._fault if self._over else self._sandbox.fault or error or session.fault
        if ended_by is not None:
            raise ended_by

    async def respond(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message | None:
        """The expert's reply, once the state before it is kept; None for a side call."""
        assert self._sandbox is not None
        if not self._prefill.left:
            await self._end()
        start = self._prefill.done
        step = self._prefill.next(messages, tools)
        if step is None:
            return None
        try:
            await self._keep(start, self._sandbox, frozenset(tool.name for tool in tools))
        except AleError as fault:
            self._fault = fault
            await self._end()
        if not any(wanted > start for wanted in self._starts.wanted):
            await self._end()
        return step.reply

    async def _keep(self, start: int, sandbox: RecordingSandbox, tools: frozenset[str]) -> None:
        record = sandbox.record()
        if record is None:
            raise AgentError(f"it cannot be told again: {sandbox.unfit or 'the agent asks the model while it acts'}")
        if start in self._starts.wanted:
            snapshot = await sandbox.inner.snapshot()
            self._starts.add(State(self._starts.expert, start, snapshot, record, tools))
        self._starts.reached = start

    async def _end(self) -> NoReturn:
        """Cancel the agent, which waits here for an answer."""
        self._over = True
        loop = asyncio.get_running_loop()
        self._deadline.reschedule(loop.time())
        await loop.create_future()
        raise AssertionError("nobody answers that")
