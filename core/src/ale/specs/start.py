"""The start of a rollout other than the beginning of its task, and who answers until the policy does.

1. A `Responder` answers model calls in the policy's place: a demonstrator, or an expert whose replies are replayed.
2. A `RolloutRequest` names a `Start`, which may serve several rollouts. Its part in one of them is an `Opening`: it
   prepares the sandbox, answers until it hands over to the policy, and checks that the rollout reached its start.
3. A `Demonstration` is a start that never hands over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from ale.messages import Message, ToolSpec
from ale.specs.driver import Channel
from ale.specs.sandbox import Sandbox, SandboxProvider, SandboxSpec
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task


@dataclass(frozen=True, slots=True)
class Reply:
    """A responder's answer. Its token ids are recorded if they spell this message in the policy's vocabulary."""

    message: Message
    token_ids: tuple[int, ...] | None = None


Responder = Callable[[Sequence[Message], Sequence[ToolSpec]], Awaitable[Reply | None]]
"""It answers model calls in the policy's place; None hands this call over to the policy.

It gets the conversation so far and the tools of the scaffold in use. Their names and arguments differ between
scaffolds: look for a tool that does what you need. The id of a `ToolCall` that it makes is any text that is unique in
the conversation."""


@dataclass(frozen=True)
class StartContext:
    """The rollout in which a start is used."""

    task: Task
    provider: SandboxProvider
    scaffold: Scaffold
    timeout_s: float
    """The number of seconds that the agent has."""
    default_limits: bool
    """Whether the sandbox's limits are defaults, which a start may lift, and not set in the run file."""
    open_another: Callable[[SandboxSpec, Responder], AbstractAsyncContextManager[tuple[Sandbox, ModelSession]]]
    """It starts another sandbox and opens another session, for work that must be done before the rollout."""


class Opening:
    """A start in one rollout. This base class does nothing: the policy begins."""

    @asynccontextmanager
    async def prepare(self, spec: SandboxSpec) -> AsyncIterator[SandboxSpec]:
        """Yield the sandbox spec to start instead of `spec`; the block ends once that sandbox has started.

        Raises an `AleError`, which ends the rollout as a failure."""
        yield spec

    def wrap(self, sandbox: Sandbox) -> Sandbox:
        """Return the sandbox that the agent sees; the reward sees the one that was started."""
        return sandbox

    async def respond(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
        """Answer as a `Responder`. Raises `StartDiverged`, after which the session answers no more calls."""
        return None

    def check(self) -> None:
        """Check the start after the agent has ended. Raises `StartDiverged` if the policy never got its turn, or if the
        start diverged and the agent went on nevertheless."""


class Start(ABC):
    """The place where rollouts begin."""

    chunks: int = 0
    """The number of chunks that it answers before the policy does (`Trajectory.start_chunk`)."""
    portable: ClassVar[bool] = False
    """Whether it can be pickled, so that its rollouts may be made in another process than the run's."""

    @property
    def task_id(self) -> str | None:
        """The task whose rollouts may start here; None means any."""
        return None

    @property
    def made_with(self) -> tuple[tuple[str, str], ...]:
        """The (section, plugin) pairs that it works with, if the run selects among several plugins in that section."""
        return ()

    def move(self, shared: dict[Any, Any], channel: Channel) -> Start:
        """Return this start as it is in another process, to which it was pickled. `shared` is what starts share there,
        and `channel` leads to the run."""
        return self

    @abstractmethod
    def open(self, context: StartContext) -> Opening:
        """Return the start's part in one rollout."""

    def expect(self, context: StartContext) -> None:  # noqa: B027
        """Note that this rollout will be made: called for all rollouts of a step before the first begins."""


@dataclass(frozen=True)
class Demonstration(Start):
    """A responder answers every call that it does not hand over; none of its chunks counts as replayed.

    `demonstrator` makes a new one for each try: a responder keeps count of one conversation. None: the policy answers.
    """

    demonstrator: Callable[[], Responder | None]

    def open(self, context: StartContext) -> Opening:
        return _Demonstrated(self.demonstrator())


class _Demonstrated(Opening):
    def __init__(self, responder: Responder | None) -> None:
        self._responder = responder

    async def respond(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
        return None if self._responder is None else await self._responder(messages, tools)
