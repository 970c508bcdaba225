"""Starts a rollout on an expert's path: the expert's first chunks are replayed, then the policy takes over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from ale.errors import StartDiverged
from ale.messages import Message, ToolSpec
from ale.specs.driver import Channel
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import Snapshots
from ale.specs.start import Opening, Reply, Start, StartContext
from ale.trajectory import Trajectory
from ale_train.starts.expert_replies import ExpertReplies
from ale_train.starts.recording_sandbox import ReplayedSandbox
from ale_train.starts.snapshot_replay import SnapshotReplay
from ale_train.starts.snapshots import ExpertKey, ExpertStates, Starts, State

REPLAY_LOST = f"{StartDiverged.kind} failure"
"""The name under which `RolloutHistory.rejected` counts rollouts that did not reach their start."""


@dataclass(frozen=True)
class ExpertReplay(Start):
    """Starts after the first `chunks` chunks of `expert`. With `states` the sandbox is a fork of the expert's state
    there; otherwise, or if that is impossible, the expert's commands are run again."""

    expert: Trajectory
    chunks: int
    ignore: tuple[str, ...] = ()
    """Regular expressions of text that may differ in the environment's answers (times, ids)."""
    states: ExpertStates | None = field(default=None, compare=False, repr=False)
    portable: ClassVar[bool] = True

    @property
    def task_id(self) -> str:
        return self.expert.task_id

    @property
    def made_with(self) -> tuple[tuple[str, str], ...]:
        """The plugins with which the expert was made; with others its commands could mean something else."""
        return self.expert.made_with

    def move(self, shared: dict[Any, Any], channel: Channel) -> ExpertReplay:
        """Return the same start for another process, whose replays share the states of that process."""
        if self.states is None:
            return self
        return replace(self, states=shared.setdefault(ExpertStates, ExpertStates(channel.event)))

    def open(self, context: StartContext) -> Opening:
        return _Replay(self, context, self._find_expert_key(context))

    def expect(self, context: StartContext) -> None:
        """Announce the start, so that a single replay makes the states of all these rollouts."""
        expert = self._find_expert_key(context)
        if self.states is not None and expert is not None:
            self.states.want(expert, self.chunks)

    def _find_expert_key(self, context: StartContext) -> ExpertKey | None:
        """Return the expert whose states are kept; None if the rollout's sandbox cannot be a fork."""
        if self.states is None or self.chunks == 0:
            return None
        if context.scaffold.over_http or not issubclass(context.provider.sandbox_type, Snapshots):
            return None
        return ExpertKey(context.provider, context.scaffold, context.task.id, self.expert.id)


class _Replay(Opening):
    """The beginning of one rollout: it replays the expert, in a fork of a snapshot if there is one."""

    def __init__(self, start: ExpertReplay, context: StartContext, kept: ExpertKey | None) -> None:
        self._start = start
        self._context = context
        self._kept = kept
        self._replies = ExpertReplies(start.expert, start.chunks, start.ignore)
        self._state: State | None = None
        self._sandbox: ReplayedSandbox | None = None

    @asynccontextmanager
    async def prepare(self, spec: SandboxSpec) -> AsyncIterator[SandboxSpec]:
        states = self._start.states
        if states is None or self._kept is None:
            yield spec
            return
        make = partial(self._make_states, self._spec_for_snapshots(spec))
        async with states.lend(self._kept, self._start.chunks, make) as self._state:
            yield spec if self._state is None else self._state.fork(self._spec_for_snapshots(spec))

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Return the sandbox; a fork answers the agent's calls up to the start from the record."""
        state, states = self._state, self._start.states
        if state is None or states is None:
            return sandbox
        diverged = partial(states.diverged, state)
        self._sandbox = ReplayedSandbox(
            sandbox, record=state.record, tools=state.tools, replies=self._replies, diverged=diverged
        )
        return self._sandbox

    async def respond(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
        step = self._replies.next(messages, tools)
        if step is not None:
            return Reply(step.reply, step.token_ids)
        if self._sandbox is not None:
            self._sandbox.policy_asked(tools)
        return None

    def check(self) -> None:
        self._replies.check_done()
        if self._sandbox is not None:
            self._sandbox.check()

    async def _make_states(self, spec: SandboxSpec, starts: Starts) -> None:
        """Make the expert's states in a sandbox like the rollout's."""
        context = self._context
        replay = SnapshotReplay(self._start.expert, self._start.ignore, starts)
        async with context.open_another(spec, replay.respond) as (sandbox, session):
            await replay.run(context.scaffold, context.task, sandbox, session, context.timeout_s)

    def _spec_for_snapshots(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the spec of a sandbox for snapshots; of a container with a disk limit no image can be made."""
        if not (self._context.default_limits and "images" in self._context.provider.capabilities):
            return spec
        return spec.model_copy(update={"resources": spec.resources.model_copy(update={"disk_mib": None})})
