"""The scaffold contract: what drives the agent, and the model session that it talks to.

A scaffold gets a task, a sandbox and a `ModelSession`; it runs the agent to its end and returns. What the model saw
and said is recorded at the session, not by the scaffold. An agent in a process of its own talks to the session over
HTTP: `base_url` and `api_key`; what such an agent needs in its sandbox's image its scaffold says with a `Recipe`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ale.errors import ConfigError
from ale.messages import ChatReply, ChunkErrorKind, Message, ToolSpec
from ale.specs.driver import Driver
from ale.specs.sandbox import Sandbox
from ale.task import Task

Responder = Callable[[Sequence[Message], Sequence[ToolSpec]], Awaitable[Message | None]]
"""Answers model calls in the policy's place (a demonstrator, an expert's replay); None hands over to the policy.

It is told the conversation so far and the tools of the scaffold at hand, whose names and arguments differ: look for a tool
that takes what you want to do. The id of a `ToolCall` of its own is any text that is unique in the conversation."""


AGENTS = "/opt/ale-agents"
"""Where agents are installed in a sandbox, out of the way of tasks: each has a folder of its own there."""
_RECIPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an agent needs in the image that its sandbox starts from, and how it comes there.

    Before an episode starts, the run puts the agent into the image, once (`ale.rollout.baking`). Both commands are for a POSIX
    shell; they find in `ALE_AGENT` the folder that the agent is to be in, which is `place`.
    """

    name: str
    """The agent and its version, such as `qwen-code-0.24.4`."""
    script: str
    """Installs the agent: run once, with a network, as root where the image has one; it stops at the first command that fails.
    Its home folder, where temporary files go too, is thrown away. Settings of the host's for package indexes stand in its environment."""
    check: str
    """Succeeds where the agent is there already."""
    base: str
    """What it asks of an image, as the end of a sentence: `Python 3.12 or newer with venv`."""
    hosts: tuple[str, ...] = ()
    """What the script reaches, as `host:port`: named for providers that let only what is named through, where a machine's indexes
    are not public hosts."""

    def __post_init__(self) -> None:
        if not _RECIPE_NAME.fullmatch(self.name):
            raise ConfigError(
                f"A recipe cannot be named {self.name!r}; use up to 40 letters, digits, '-', '_' and '.', such as my-agent-1.0."
            )

    @property
    def place(self) -> str:
        """The folder that the agent is installed into."""
        return f"{AGENTS}/{self.name}"


class ModelSession(ABC):
    """One episode's line to the model."""

    id: str
    calls: int = 0
    """How many model calls were made so far, those that failed too."""

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

    over_http: ClassVar[bool] = False
    """Its agent is a process in the sandbox that asks the model over HTTP: the run serves that, and is refused where its
    sandboxes have no way to it (`needs.network: none`)."""
    deterministic_tools: frozenset[str] = frozenset()
    """Tools of its agent whose answer depends on the task and their arguments alone, not on what was done before: a rollout in
    which one answers an identical call in another way is not trusted. A command or a read file is no such tool."""

    @property
    def recipe(self) -> Recipe | None:
        """What its agent needs in the sandbox's image; None where that is nothing, or where images have it anyway."""
        return None

    @abstractmethod
    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """Run to the agent's end; returns why it ended in a word (`finish`, `max_turns`, `budget`, `gave_up`).

        Raises what the sandbox and the session raise; anything else becomes an `AgentError`. `BudgetExceeded` may be let
        out: the episode then ends as `budget` and is scored as it stands. A call that cannot be carried out is marked
        with `session.mark_error` and answered, what a command said is told to `session.observe`.
        """
