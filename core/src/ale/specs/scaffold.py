"""The scaffold contract: what drives the agent, and the model session that it talks to.

A scaffold gets a task, a sandbox and a `ModelSession`; it runs the agent to its end and returns. What the model saw
and said is recorded at the session, not by the scaffold. An agent in a process of its own talks to the session over
HTTP: `base_url` and `api_key`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ale.messages import ChatReply, ChunkErrorKind, Message, ToolSpec
from ale.specs.driver import Driver
from ale.specs.sandbox import Sandbox
from ale.task import Task

Responder = Callable[[Sequence[Message], Sequence[ToolSpec]], Awaitable[Message | None]]
"""Answers model calls in the policy's place (a demonstrator, an expert's replay); None hands over to the policy.

It is told the conversation so far and the tools of the scaffold at hand, whose names and arguments differ: look for a tool
that takes what you want to do. The id of a `ToolCall` of its own is any text that is unique in the conversation."""


class ModelSession(ABC):
    """One episode's line to the model."""

    id: str

    @property
    @abstractmethod
    def base_url(self) -> str:
        """OpenAI-compatible base URL (ends in `/v1`). Raises `ConfigError` where the run serves no HTTP."""

    @property
    @abstractmethod
    def api_key(self) -> str:
        """The key that makes an HTTP call one of this session."""

    @abstractmethod
    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> ChatReply:
        """One model call. Raises `BudgetExceeded` when the episode's calls or context are used up, `EngineError`."""

    @abstractmethod
    def mark_error(self, chunk: int, kind: ChunkErrorKind, message: str) -> None:
        """Record that the chunk's tool call was illegal or its execution failed (`m_err = 0`, Eq. 2).

        `illegal_call`: there is no such tool, or the arguments do not fit; text that cannot be read as a call at all
        (`ChatReply.illegal`) and replies cut by length are marked by the session itself. `execution_failed`: the tool
        could not do what was asked. A command that exits with 1 did: its code is an observation.
        """

    @abstractmethod
    def observe(
        self, chunk: int, tool: str, arguments: Mapping[str, Any], text: str, exit_code: int | None, seconds: float
    ) -> None:
        """Record what the environment answered to a call of this chunk (for people, and for replay)."""


class Scaffold(Driver, ABC):
    """Drives an agent through one episode."""

    @abstractmethod
    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """Run to the agent's end; returns why it ended in a word (`finish`, `max_turns`, `budget`, `gave_up`).

        Raises what the sandbox and the session raise; anything else becomes an `AgentError`. `BudgetExceeded` may be let
        out: the episode then ends as `budget` and is scored as it stands. A call that cannot be carried out is marked
        with `session.mark_error` and answered, what a command said is told to `session.observe`.
        """
