"""The sandbox contract: a sandbox is the isolated machine in which an agent's commands run.

A `SandboxProvider` starts sandboxes; a `Sandbox` runs commands and moves files. Errors of a *command* are data
(`ExecResult`); errors of the *sandbox* raise `SandboxError`, so that a dead sandbox never looks like a failed command.
A provider never leaks: it can list and remove whatever it started, also after a crash.

Some can do more: extra methods are defined in `ale.specs.sandbox_protocols`, and extra promises that a run may need
before anything starts in `ale.specs.kinds.CAPABILITIES['sandbox']`.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ale.messages import short_repr
from ale.task import ALLOW as ALLOW
from ale.task import NetworkMode as NetworkMode
from ale.task import Resources as Resources
from ale.task import host_and_port as host_and_port

ENDPOINT_PORT = 8600
ENDPOINT_URL = f"http://127.0.0.1:{ENDPOINT_PORT}"
"""The URL at which programs in a sandbox find the model endpoint."""
AGENT, TESTS = "agent", "tests"
"""The two roles that a command can run as: the agent's user, and the user that owns hidden tests. A provider without
the capability `users` runs both as one user."""


class SandboxSpec(BaseModel):
    """What to start. It is frozen; the provider refuses what it cannot provide and never ignores it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = Field(
        None,
        description=(
            "Name of the sandbox; null: the provider chooses one. Starting the same spec again returns the "
            "existing sandbox; a different spec, or a sandbox of another process, is refused."
        ),
    )
    image: str | None = Field(None, description="Container image; null: the provider's default.")
    from_snapshot: str | None = Field(None, description="Start from this snapshot (`Snapshots.snapshot` makes one).")
    resources: Resources = Resources()
    network: NetworkMode = "none"
    allow: tuple[str, ...] = Field((), description=ALLOW)
    endpoint: str | None = Field(
        None,
        description="Where the model endpoint listens on the host (`http://127.0.0.1:PORT` or `unix:///PATH`); "
        "inside, it is at `ENDPOINT_URL` in every network mode but `none`.",
    )
    user: Literal["agent", "root"] | None = Field(
        None, description="User that runs the agent's commands; null: the provider's default."
    )
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, bytes] = Field(
        default_factory=dict, description="Files to put into the work folder, relative path -> bytes."
    )
    workdir: str = Field(
        "/workspace",
        description=(
            "Absolute path of the work folder inside the sandbox; a provider without the capability `isolated` "
            "chooses its own path."
        ),
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels by which sandboxes are listed and pruned, such as the run's id."
    )
    lifetime_s: float | None = Field(
        None, gt=0, description="The provider removes the sandbox after this many seconds."
    )
    idle_s: float | None = Field(
        None,
        gt=0,
        description="The provider removes the sandbox when it has received no request for this many seconds.",
    )

    __repr__ = __str__ = short_repr

    @field_validator("allow")
    @classmethod
    def _hosts_and_ports(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            host_and_port(entry)
        return value


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a command. On a time-out the whole process tree was killed and the output so far is kept."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool = False
    truncated: bool = False

    __repr__ = short_repr

    @property
    def output(self) -> str:
        """Return stdout, then stderr, as text (undecodable bytes are replaced)."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """An entry of the provider's list of what it started and has not removed."""

    id: str
    labels: Mapping[str, str]
    created_at: float
    alive: bool


class Sandbox(ABC):
    """A running sandbox. `async with` stops it. Every call raises `SandboxError` once it is stopped or dead."""

    id: str
    spec: SandboxSpec

    @property
    def endpoint_url(self) -> str | None:
        """The URL at which programs in this sandbox find the model endpoint; None if they cannot reach it."""
        return ENDPOINT_URL if self.spec.endpoint is not None and self.spec.network != "none" else None

    @abstractmethod
    async def exec(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str = AGENT,
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        """Run `command` with a shell and wait for it.

        stdout and stderr are each cut at `max_output_bytes` (`truncated` reports it; the command goes on). A time-out
        kills everything that the command started and gives exit code 124. Cancelling the call kills it too.

        It returns when the command itself ends; it does not wait for background processes that still hold the output.
        `cwd` is relative to the work folder; if it does not exist, the command fails. A command that no shell can be
        given (a NUL byte, a lone surrogate) is also a failed command: no text is an error of the sandbox.
        """

    @abstractmethod
    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Write files; relative paths are in the work folder, and parent folders are made. Raises `SandboxError` with
        the reason if a file cannot be written."""

    @abstractmethod
    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Read one file. Raises `FileNotFoundError` or `IsADirectoryError` if that applies, and `SandboxError`,
        `ValueError` or `OSError` for a file that is larger than `max_bytes` or not a regular file."""

    @abstractmethod
    async def kill_agent_processes(self) -> None:
        """End every process that the agent left running, so that none can watch or change the scoring."""

    @abstractmethod
    async def stop(self) -> None:
        """End the sandbox and everything in it. It is idempotent, and safe while a command runs."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


class SandboxProvider(ABC):
    """It starts sandboxes. As a driver, its `close()` stops all of them. `list`, `remove` and `prune` also work on a
    provider that was not started, because `ale sandbox` calls them."""

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What it can do beyond the contract (`Driver.capabilities`)."""
    default_image: str | None = None
    """The image of a sandbox whose spec names none; None if the provider has no such image."""
    sandbox_type: ClassVar[type[Sandbox]] = Sandbox  # type: ignore[type-abstract]
    """The class of its sandboxes: it shows which protocols they have (`ale.specs.sandbox_protocols`). `start` may
    narrow it on the instance to what works on this machine."""

    @classmethod
    def sandbox_type_with(cls, config: Any) -> type[Sandbox]:
        """Return the class of its sandboxes with these settings; override it if a setting changes it."""
        return cls.sandbox_type

    @abstractmethod
    async def start_sandbox(self, spec: SandboxSpec) -> Sandbox:
        """Start one. Raises `SandboxError` (an infrastructure fault, or an id that exists already) or `ConfigError` (a
        spec that cannot be met is refused, never ignored)."""

    @abstractmethod
    async def list(self) -> list[SandboxInfo]:
        """Return everything that a provider of this kind started on this machine as this user, in this process or
        another, and that was not removed."""

    @abstractmethod
    async def remove(self, sandbox_id: str) -> None:
        """Remove one by id, whichever process started it. It is idempotent."""

    async def prune(self) -> builtins.list[str]:
        """Remove what ended processes left behind, and return the ids. `start` does this too."""
        return []
