"""The sandbox contract: where an agent acts.

A `SandboxProvider` starts sandboxes; a `Sandbox` runs commands and moves files. Errors of a *command* are data
(`ExecResult`); errors of the *sandbox* raise `SandboxError`, so that a dead sandbox never looks like a failed
command. A provider never leaks: what it started, it lists and removes, also after a crash.

Capabilities, with their meaning: `ale.specs.kinds.CAPABILITIES['sandbox']`.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from ale.errors import PluginError
from ale.specs.driver import Driver

NetworkMode = Literal["none", "endpoint-only", "allow", "full"]
AGENT, TESTS = "agent", "tests"
"""The two roles a command can run as: the agent's user, and the user that owns hidden tests. A provider without the
capability `users` runs both as one user."""


class Resources(BaseModel):
    """Limits of one sandbox; null means the provider's own limit. A provider without the capability `limits` refuses any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: float | None = Field(None, gt=0, description="CPU cores, fractions allowed.")
    memory_mib: int | None = Field(None, gt=0, description="Memory, MiB.")
    pids: int | None = Field(None, gt=0, description="Processes and threads at once.")
    disk_mib: int | None = Field(None, gt=0, description="Size of the writable file system, MiB.")


class SandboxSpec(BaseModel):
    """What to start. Frozen; the provider refuses what it cannot give instead of ignoring it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = Field(
        None, description="Name of the sandbox; null lets the provider choose. Starting an id twice is refused."
    )
    image: str | None = Field(None, description="Container image; null: the provider's default.")
    from_snapshot: str | None = Field(None, description="Start from this snapshot (capability `snapshot`).")
    resources: Resources = Resources()
    network: NetworkMode = "none"
    allow: tuple[str, ...] = Field((), description="`host:port` entries for the network mode `allow`.")
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, bytes] = Field(
        default_factory=dict, description="Files to put into the work folder, relative path -> bytes."
    )
    workdir: str = Field(
        "/workspace",
        description="Absolute path of the work folder inside the sandbox; a provider without the capability `isolated` "
        "has it where it can.",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="For listing and pruning, e.g. the run id.")
    lifetime_s: float | None = Field(
        None, gt=0, description="The provider removes the sandbox after this many seconds."
    )
    idle_s: float | None = Field(
        None, gt=0, description="The provider removes the sandbox when nothing was asked of it for so many seconds."
    )


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did. On a time-out the whole process tree was killed and the output so far is kept."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool = False
    truncated: bool = False

    @property
    def output(self) -> str:
        """stdout, then stderr, as text (undecodable bytes replaced)."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """What a sandbox uses now; None where the provider cannot tell."""

    memory_bytes: int | None = None
    cpu_s: float | None = None
    pids: int | None = None


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A line of the provider's list of what it started and has not removed."""

    id: str
    labels: Mapping[str, str]
    created_at: float
    alive: bool


class Sandbox(ABC):
    """A running sandbox. `async with` stops it. Every call raises `SandboxError` once it is stopped or dead."""

    id: str
    spec: SandboxSpec

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

        stdout and stderr are each cut at `max_output_bytes` (`truncated` says so; the command goes on). A time-out
        kills everything the command started and gives exit code 124. Cancelling the call kills it too.

        It returns when the command itself ends: what that left in the background, holding its output, is not awaited.
        `cwd` is relative to the work folder; one that is not there is a failed command. So is a command that no shell
        can be given (a NUL byte, half a character): no text is an error of the sandbox.
        """

    @abstractmethod
    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Write files; relative paths stand in the work folder, parents are made. Raises `SandboxError`, with the reason,
        where a file cannot be written."""

    @abstractmethod
    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Read one file. Raises `FileNotFoundError` or `IsADirectoryError` as the path deserves, and `SandboxError`,
        `ValueError` or `OSError` for one that is larger than `max_bytes` or no regular file."""

    @abstractmethod
    async def kill_agent_processes(self) -> None:
        """End every process the agent left running, so that none can watch or touch the scoring."""

    @abstractmethod
    async def stop(self) -> None:
        """End the sandbox and everything in it. Idempotent; safe while a command runs."""

    async def stats(self) -> SandboxStats:
        """What the sandbox uses now."""
        return SandboxStats()

    async def snapshot(self, name: str | None = None) -> str:
        """Keep the file system's state; returns a name for `SandboxSpec.from_snapshot`."""
        raise PluginError(
            f"The sandbox {self.id} cannot make snapshots; use a provider with the capability 'snapshot'."
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()


class SandboxProvider(Driver, ABC):
    """Starts sandboxes. `close()` stops all of them."""

    @abstractmethod
    async def start_sandbox(self, spec: SandboxSpec) -> Sandbox:
        """Start one. Raises `SandboxError` (infrastructure; an id that is there already) or `ConfigError` (a spec that
        cannot be met: it is refused, never ignored)."""

    @abstractmethod
    async def list(self) -> list[SandboxInfo]:
        """Everything that a provider of this kind started on this machine as this user, in this process or another,
        and that was not removed."""

    @abstractmethod
    async def remove(self, sandbox_id: str) -> None:
        """Remove one by id, whoever started it. Idempotent."""

    async def prune(self) -> builtins.list[str]:
        """Remove what owners that are gone have left, and say which. `start` does so too.

        `list`, `remove` and `prune` work on a provider that was not started: `ale sandbox` calls them.
        """
        return []

    async def build_image(self, name: str | None = None, *, python: bool = False) -> str:
        """Make a small image without a registry, with a Python in it where `python` is set; returns its name (capability
        `images`)."""
        raise PluginError(f"{type(self).__name__} has no images; use a provider with the capability 'images'.")
