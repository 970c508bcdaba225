"""The errors of ALE: one small tree, split by whose fault it was.

Every message is a sentence for a person: what was wrong, where (YAML path, plugin, file), how to mend it.
Inside a rollout the class of an error decides what happens next: a *retryable* one (sandbox, engine)
makes the rollout an infrastructure failure, which is resampled and never enters training as a zero;
the others are recorded with the trajectory. At the command line the class gives the exit code.
"""

from __future__ import annotations

from typing import ClassVar, Literal

FaultKind = Literal["config", "plugin", "sandbox", "engine", "api", "agent", "task", "trainer", "replay", "run"]


class AleError(Exception):
    """Root of the tree. `kind` names the boundary that failed, as stored in trajectories and summaries."""

    kind: ClassVar[FaultKind] = "run"
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
    """The sandbox or its provider failed: infrastructure, never the command that ran inside it."""

    kind = "sandbox"
    retryable = True


class OutOfMemoryError(SandboxError):
    """What ran in the sandbox used its memory up and so ended it: the agent's doing, and not to be tried again."""

    retryable = False


class UncleanError(SandboxError):
    """A sandbox that was to be reset could not be shown to be as new; `what` says in which respect (files, processes, ...)."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


class EngineError(AleError):
    """The inference engine failed, stalled or was given a request that it cannot serve."""

    kind: ClassVar[FaultKind] = "engine"
    retryable = True


class ApiError(EngineError):
    """A service that is asked over a network did not answer for now: another server's model is overloaded or out of reach."""

    kind = "api"


class AgentError(AleError):
    """The scaffold crashed. What the policy does wrong inside a working scaffold is data, not an error."""

    kind = "agent"


class TaskError(AleError):
    """The task is broken: its files, its tests or its reference solution cannot be used."""

    kind = "task"


class TrainerError(AleError):
    """The trainer backend failed, or training is collapsing."""

    kind = "trainer"


class RequestRefused(AleError):
    """A model call that no further try will get answered, for what it asks: the agent's doing. `status` is HTTP's."""

    kind = "agent"

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class BudgetExceeded(AleError):
    """An episode used up its calls, tokens or seconds; the episode ends cleanly and is scored as it stands."""

    kind = "agent"


class ContextExceeded(BudgetExceeded):
    """The conversation leaves no room for an answer: an agent that shortens it may go on."""


class DivergedReplay(AleError):
    """An expert's chunks were replayed, and the environment or the agent did not do what it did then (3.2.4.4)."""

    kind = "replay"
