"""The errors of ALE form one small tree, split by whose fault an error is.

Every message is a sentence for a person: it says what was wrong, where (YAML path, plugin, file) and how to mend it.
Inside a rollout the class of an error decides what happens next: a *retryable* one (sandbox, engine) makes the rollout
an infrastructure failure, which is resampled and never enters training as a zero; the others are recorded with the
trajectory. At the command line the class gives the exit code.
"""

from __future__ import annotations

from typing import ClassVar, Literal

ErrorKind = Literal[
    "config", "plugin", "sandbox", "engine", "api", "agent", "task", "overlong", "trainer", "replay", "spare", "run"
]


class AleError(Exception):
    """The root of the tree. `kind` names the boundary that failed; trajectories and summaries store it."""

    kind: ClassVar[ErrorKind] = "run"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigError(AleError):
    """The user's configuration or command line is wrong."""

    kind = "config"
    exit_code = 2


class PluginError(AleError):
    """A plugin is missing, broken, made for another API version, or lacks a capability that the run needs."""

    kind = "plugin"
    exit_code = 2


class SandboxError(AleError):
    """The sandbox or its provider failed: this is infrastructure, never the command that ran inside it."""

    kind = "sandbox"
    retryable = True


class OutOfMemoryError(SandboxError):
    """A program in the sandbox used up the sandbox's memory and thereby ended the sandbox. The agent caused it, so the
    rollout is not made again."""

    retryable = False


class UncleanError(SandboxError):
    """A check after a reset could not show that the sandbox is like a new one; `what` names the part (files, ...)."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


class EngineError(AleError):
    """The inference engine failed, stalled or was given a request that it cannot serve."""

    kind: ClassVar[ErrorKind] = "engine"
    retryable = True


class ApiError(EngineError):
    """A service on the network did not answer for now: for example, a model on another server is overloaded or
    unreachable."""

    kind = "api"


class AgentError(AleError):
    """The scaffold crashed. What the policy does wrong inside a working scaffold is data, not an error."""

    kind = "agent"


class TaskError(AleError):
    """The task is broken: its files, its tests or its reference solution cannot be used."""

    kind: ClassVar[ErrorKind] = "task"


class OverlongPrompt(TaskError):
    """The task's first prompt leaves no room for a reply in the context; no other try could."""

    kind = "overlong"


class TrainerError(AleError):
    """The trainer backend failed, or training is collapsing."""

    kind = "trainer"


class TrainerLost(TrainerError):
    """The trainer's processes have died. A run with checkpoints goes on from the last one by itself."""


class SessionError(AleError):
    """The model session, or the endpoint in front of it, failed by a fault of its own: the agent is not to blame."""

    retryable = True


class RequestRefused(AleError):
    """A model call cannot be answered in the form in which the agent sent it. `status` is the HTTP status."""

    kind = "agent"

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class BudgetExceeded(AleError):
    """An episode used up its calls, tokens or seconds; the episode ends cleanly and is scored as it stands."""

    kind = "agent"


class ContextExceeded(BudgetExceeded):
    """The context is full, so there is no room for an answer; an agent that shortens its conversation may go on."""


class StartDiverged(AleError):
    """A rollout did not reach its start: the environment or the agent behaved otherwise than before (3.2.4.4)."""

    kind = "replay"
