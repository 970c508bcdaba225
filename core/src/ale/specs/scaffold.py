"""The scaffold contract: a scaffold drives the agent, which talks to a model session.

A scaffold gets a task, a sandbox and a `ModelSession`; it runs the agent to its end and returns. The session, not the
scaffold, records what the model saw and sampled. The scaffold itself provides what its agent needs in the sandbox (a
program in the image, a connection to the model): see `prepare`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ale.errors import AleError
from ale.messages import ChatReply, ChunkErrorKind, Message, ModelCall, ToolSpec
from ale.specs.sandbox import Sandbox, SandboxProvider, SandboxSpec
from ale.task import Task


class ModelSession(ABC):
    """The model session of one episode."""

    id: str
    calls: int = 0
    """The number of model calls so far, failed ones included."""
    fault: AleError | None = None
    """The error of the last call, unless the agent or the budget caused it."""

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> ChatReply:
        """Make one model call. Raises `BudgetExceeded` if the episode's calls or context are used up, `EngineError`."""
        return (await self.answer(ModelCall(tuple(messages), tuple(tools))))[0]

    @abstractmethod
    async def answer(self, call: ModelCall) -> list[ChatReply]:
        """Make one model call of any API. It returns as many replies as were asked for, each of which counts as a call.
        Raises as `chat` does."""

    @abstractmethod
    def count_tokens(self, call: ModelCall) -> int:
        """Return the number of tokens in the prompt of a call; nothing is recorded."""

    @abstractmethod
    def mark_error(self, chunk: int, kind: ChunkErrorKind, message: str) -> None:
        """Record that the chunk's tool call was illegal or its execution failed (`m_err = 0`, Eq. 2).

        `illegal_call`: there is no such tool, or the arguments do not fit. The session itself marks text that cannot be
        read as a call at all (`ChatReply.illegal`) and replies that were cut at their token limit. `execution_failed`:
        the tool could not do what was asked. A command that exits with 1 did run: its exit code is an observation.
        """

    @abstractmethod
    def observe(
        self,
        chunk: int,
        tool: str,
        arguments: Mapping[str, Any],
        text: str,
        exit_code: int | None,
        seconds: float,
        reward: float | None = None,
    ) -> None:
        """Record what the environment answered to a call of this chunk (for people, and for replay), and its reward for
        that step, if it gives one."""


class Scaffold(ABC):
    """It drives an agent through one episode."""

    over_http: ClassVar[bool] = False
    """Whether its agent is a process in the sandbox that calls the model over HTTP: a run is refused if its sandboxes
    have no connection to the model (`needs.network: none`)."""
    over_files: ClassVar[bool] = False
    """Whether its agent can also call the model through files in the sandbox, if that has no network."""
    deterministic_tools: frozenset[str] = frozenset()
    """Tools of its agent whose answer depends only on the task and their arguments, not on what was done before: a
    rollout is not trusted if such a tool answers an identical call differently. Running a command and reading a file
    are no such tools."""

    async def prepare(self, spec: SandboxSpec, provider: SandboxProvider) -> SandboxSpec:
        """Return the spec of an episode's sandbox with what the agent needs in it: an image with its program
        (`from_snapshot`), a connection to the model (`endpoint`). Raises `ConfigError`, `SandboxError`."""
        return spec

    @classmethod
    def uses_sandbox(cls, config: Any) -> bool:
        """Return whether its agent uses the sandbox with these settings. Where neither the scaffold nor the reward of a
        run uses it, none is started, and what they get in its place refuses every call."""
        return True

    def first_call(self, task: Task) -> ModelCall | None:
        """Return the first model call of an episode of this task, if it is known before: tasks whose first prompt is
        too long are found by it before the run. None: it is not known, and has at least the task's messages."""
        return None

    @abstractmethod
    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """Run the agent to its end; returns in one word why it ended (`finish`, `max_turns`, `budget`, `gave_up`).

        Raises what the sandbox and the session raise; anything else becomes an `AgentError`. `BudgetExceeded` need not
        be caught: the episode then ends as `budget` and is scored as it stands. A tool call that cannot be carried out
        is marked with `session.mark_error` and answered; the output of a command is reported with `session.observe`."""
