"""The sandbox contract: where an agent acts.

A `SandboxProvider` starts sandboxes; a `Sandbox` runs commands and moves files. Errors of a *command* are data
(`ExecResult`); errors of the *sandbox* raise `SandboxError`, so that a dead sandbox never looks like a failed
command. A provider never leaks: what it started, it lists and removes, also after a crash.

Capabilities, with their meaning: `ale.specs.kinds.CAPABILITIES['sandbox']`.
"""

from __future__ import annotations

import builtins
import ipaddress
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ale.errors import PluginError
from ale.specs.driver import Driver

NetworkMode = Literal["none", "endpoint-only", "allow", "full"]
ENDPOINT_PORT = 8600
ENDPOINT_URL = f"http://127.0.0.1:{ENDPOINT_PORT}"
"""Where a sandbox finds the model endpoint."""
AGENT, TESTS = "agent", "tests"
"""The two roles a command can run as: the agent's user, and the user that owns hidden tests. A provider without the
capability `users` runs both as one user."""


ALLOW = (
    "What the network mode `allow` lets through, TCP alone: `host:port` entries. A host is a name (`pypi.org:443`), all "
    "names below one (`*.example.org:443`), any public host (`*:443`), or an address (`10.0.0.5:5432`, `[::1]:80`)."
)
_HOST = re.compile(r"(\*\.)?(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*|\*")


def host_and_port(entry: str) -> tuple[str, int]:
    """An entry of `allow`. Raises `ValueError` with a sentence."""
    host, colon, port = entry.strip().lower().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        host = ipaddress.ip_address(host[1:-1] if bracketed else host).compressed
    except ValueError:
        good = not bracketed and len(host) <= 253 and bool(_HOST.fullmatch(host))
    else:
        good = bracketed == (":" in host)
    if not (colon and good and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(
            f"{entry!r} is no host and port; write pypi.org:443, *.example.org:443, 10.0.0.5:5432 or [2001:db8::1]:80"
        )
    return ("127.0.0.1" if host == "localhost" else host), int(port)


class Resources(BaseModel):
    """Limits of one sandbox; null means the provider's own limit. A provider without the capability `limits` refuses any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: float | None = Field(None, gt=0, description="CPU cores, fractions allowed.")
    memory_mib: int | None = Field(None, gt=0, description="Memory, MiB.")
    pids: int | None = Field(None, gt=0, description="Processes and threads at once.")
    disk_mib: int | None = Field(None, gt=0, description="Size of the writable file system, MiB.")
    open_files: int | None = Field(None, gt=15, description="Files that one process may have open.")
    gpus: int | None = Field(None, gt=0, description="GPUs handed in (capability `gpu`).")


class SandboxSpec(BaseModel):
    """What to start. Frozen; the provider refuses what it cannot give instead of ignoring it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = Field(
        None,
        description="Name of the sandbox; null lets the provider choose. Starting the same spec again gives the sandbox "
        "that is there; another spec, or one of another process, is refused.",
    )
    image: str | None = Field(None, description="Container image; null: the provider's default.")
    from_snapshot: str | None = Field(None, description="Start from this snapshot (capability `snapshot`).")
    resources: Resources = Resources()
    network: NetworkMode = "none"
    allow: tuple[str, ...] = Field((), description=ALLOW)
    endpoint: str | None = Field(
        None,
        description="Where the model endpoint listens on the host (`http://127.0.0.1:PORT` or `unix:///PATH`); inside, it "
        "is at `ENDPOINT_URL` in every network mode but `none`.",
    )
    user: Literal["agent", "root"] | None = Field(
        None, description="Who the agent's commands run as; null: as the provider is set up."
    )
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

    @field_validator("allow")
    @classmethod
    def _hosts_and_ports(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            host_and_port(entry)
        return value


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
class Output:
    """A piece of a command's output, as it was written."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """What a sandbox uses now; None where the provider cannot tell."""

    memory_bytes: int | None = None
    cpu_s: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    """What its files take."""
    network_in_bytes: int | None = None
    network_out_bytes: int | None = None
    """What its programs received and sent beyond the sandbox, the model endpoint included."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A line of the provider's list of what it started and has not removed."""

    id: str
    labels: Mapping[str, str]
    created_at: float
    alive: bool


class Shell(ABC):
    """A shell that lives across commands: its folder, variables, functions and background jobs stay. `async with` ends it."""

    @abstractmethod
    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = 1 << 20) -> ExecResult:
        """Run `command` in the shell and wait for it; one at a time, others wait their turn.

        Output is this command's alone: what an earlier one's background job writes later belongs to nobody. A command
        that ends the shell (`exit 7`) has that exit code, and the next one finds folder, variables and functions as they
        were. A time-out ends what the command started, not the background jobs of earlier ones, and gives 124.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the shell and what it started. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Sandbox(ABC):
    """A running sandbox. `async with` stops it. Every call raises `SandboxError` once it is stopped or dead."""

    id: str
    spec: SandboxSpec

    @property
    def endpoint_url(self) -> str | None:
        """Where programs in here find the model endpoint; None where they cannot reach it."""
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

    def exec_stream(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str = AGENT,
    ) -> AsyncGenerator[Output | ExecResult, None]:
        """`exec`, with the output as it comes (capability `streaming`); the last item is the result, its output empty.

        Nothing is cut. A reader that is slow makes the command wait; one that leaves (`aclose`, as `contextlib.aclosing`
        does it, or a cancelled `async for`) ends it.
        """
        raise self._cannot("hand output out as it is written", "streaming")

    async def open_shell(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str = AGENT
    ) -> Shell:
        """A persistent shell (capability `shell`)."""
        raise self._cannot("keep a shell", "shell")

    async def upload_tree(self, source: Path, target: str, *, user: str = AGENT) -> None:
        """Copy a file or a folder of the host to `target` in the sandbox, of any size, permissions kept (capability `trees`).

        A folder that is there takes in what comes; no link that the agent put into it is followed. A link that leads out of
        the tree, a device, a socket or a pipe in it is refused, with `SandboxError`, before anything is sent.
        """
        raise self._cannot("take trees of files", "trees")

    async def download_tree(self, source: str, target: Path, *, max_bytes: int = 1 << 32) -> None:
        """Copy a file or a folder of the sandbox to `target`, which must not be there yet (capability `trees`).

        Nothing is written outside `target`, whatever the sandbox sends; what a tree must not hold (see `upload_tree`) is
        refused with `SandboxError`, and then `target` is not there. Raises `FileNotFoundError` as `download` does.
        """
        raise self._cannot("hand trees of files out", "trees")

    async def snapshot(self, name: str | None = None, *, processes: bool = False) -> str:
        """Keep the file system's state; returns a name for `SandboxSpec.from_snapshot`.

        It may be made after any step, while processes run. One with a `name` stays until it is removed
        (`SandboxProvider.remove_snapshot`), and takes the place of one that has that name: what runs from the old one goes on.
        One without goes with its provider, also where that was killed.

        Processes are not kept, unless `processes` is set (capability `checkpoint`): they stand still for a moment, go on here,
        and go on from there in every sandbox that starts from it, with their memory and open files. Such a sandbox is
        started with the network, resources, user and work folder that this one has, and cannot be reset. Shells are not
        handed over to it; what runs in them goes on.
        """
        raise self._cannot("make snapshots", "snapshot")

    async def reset(self, spec: SandboxSpec) -> None:
        """Be again as newly started from `spec`, which differs from `self.spec` in `env`, `files` and `labels` at most
        (capability `reset`).

        Everything that ran is ended, what was written is removed, and that nothing is left is looked at: files,
        processes, sockets, shared memory. Raises `SandboxError` where that cannot be shown; the sandbox is then to be
        stopped.
        """
        raise self._cannot("be reset", "reset")

    async def logs(self) -> str:
        """What happened in it lately, a line each: commands, their ends, refused network, what its first process said."""
        return ""

    def _cannot(self, what: str, capability: str) -> PluginError:
        return PluginError(f"The sandbox {self.id} cannot {what}; use a provider with the capability '{capability}'.")

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

    async def attach(self, sandbox_id: str) -> Sandbox:
        """A sandbox that another process of this user owns, to run commands in it; leaving it (`stop` of what this gives)
        does not end it. Raises `SandboxError` where there is none (capability `attach`)."""
        raise PluginError(f"{type(self).__name__} cannot reach sandboxes of other processes.")

    async def snapshots(self) -> builtins.list[str]:
        """The snapshots that a sandbox can be started from, of this user on this machine, whoever made them."""
        return []

    async def remove_snapshot(self, name: str) -> None:
        """Remove one, whoever made it. Idempotent. Sandboxes that run from it go on; or, where that cannot be, it is refused
        with `SandboxError` and stays."""
        raise PluginError(f"{type(self).__name__} has no snapshots; use a provider with the capability 'snapshot'.")

    async def prune(self) -> builtins.list[str]:
        """Remove what owners that are gone have left, and say which. `start` does so too.

        `list`, `remove`, `prune`, `snapshots` and `remove_snapshot` work on a provider that was not started: `ale sandbox`
        calls them.
        """
        return []

    async def build_image(self, name: str | None = None, *, python: bool = False) -> str:
        """Make a small image without a registry, with a Python in it where `python` is set; returns its name (capability
        `images`)."""
        raise PluginError(f"{type(self).__name__} has no images; use a provider with the capability 'images'.")
