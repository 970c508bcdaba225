"""What some sandboxes and providers can do beyond their contracts: small protocols, found by `isinstance`.

1. A sandbox has a protocol if it has its methods: `if isinstance(box, Shells): await box.open_shell()`.
2. A provider declares by `sandbox_type`, the class of its sandboxes, which protocols its sandboxes have, so that a run
   which needs one (`Driver.needs`) can be refused before anything starts.
3. A sandbox that wraps another one (for a pool, for an observer) has the protocols of the inner one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self, runtime_checkable

from ale.errors import PluginError
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxSpec
from ale.task import ImageBuild


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a command's output, as it was written."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """What a sandbox uses now; a value is None if the provider cannot measure it."""

    memory_bytes: int | None = None
    cpu_s: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    """The space that its files take."""
    network_in_bytes: int | None = None
    network_out_bytes: int | None = None
    """What its programs received from and sent to outside the sandbox, the model endpoint included."""


class ReportsMetrics(Protocol):
    """What a run asks for numbers at each step, such as a pool of sandboxes."""

    def metrics(self) -> dict[str, float]:
        """Return its counters."""
        ...


class Shell(ABC):
    """A shell that stays alive between commands: its folder, variables, functions and background jobs stay. `async
    with` ends it."""

    @abstractmethod
    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = 1 << 20) -> ExecResult:
        """Run `command` in the shell and wait for it; commands run one at a time, and others wait for their turn.

        The output is this command's alone: later output of earlier commands' background jobs is dropped. A command that
        ends the shell (`exit 7`) has that exit code, and the next one finds folder, variables and functions as they
        were. A time-out ends what the command started, but no earlier background jobs, and gives 124."""

    @abstractmethod
    async def close(self) -> None:
        """End the shell and what it started. It is idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


# --- protocols of sandboxes


@runtime_checkable
class Streams(Protocol):
    """Hands output out as it is written."""

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
        """Run as `exec` does, and yield the output as it is written; the last item is the result, without output.

        Nothing is cut. A slow reader makes the command wait; a reader that stops (`aclose`, as in
        `contextlib.aclosing`, or a cancelled `async for`) ends it."""


@runtime_checkable
class Shells(Protocol):
    """Keeps shells that live across commands."""

    async def open_shell(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str = AGENT
    ) -> Shell:
        """Start a shell."""


@runtime_checkable
class Trees(Protocol):
    """Copies trees of files in and out."""

    async def upload_tree(self, source: Path, target: str, *, user: str = AGENT) -> None:
        """Copy a file or a folder of the host to `target` in the sandbox, of any size, with its permissions.

        The files are added to a folder that exists; no link that the agent put into it is followed. A link that leads
        out of the tree, a device, a socket or a pipe raises `SandboxError` before anything is sent.
        """

    async def download_tree(self, source: str, target: Path, *, max_bytes: int = 1 << 32) -> None:
        """Copy a file or a folder of the sandbox to `target`, which must not exist yet.

        Nothing is written outside `target`, whatever the sandbox sends. Entries that `upload_tree` refuses raise
        `SandboxError`, and `target` then does not exist. Raises `FileNotFoundError` as `download` does.
        """


@runtime_checkable
class Snapshots(Protocol):
    """Keeps the file system's state by name, for sandboxes that start from it. Its provider is a `KeepsSnapshots`."""

    async def snapshot(self, name: str | None = None) -> str:
        """Keep the file system's state; returns a name for `SandboxSpec.from_snapshot`.

        It may be made after any step, while processes run; these are not kept. A snapshot with a `name` stays until it
        is removed (`KeepsSnapshots.remove_snapshot`) and replaces an older one of that name; sandboxes that run from
        the old one go on. A snapshot without a name is removed with its provider, also if that was killed. A call that
        is cancelled makes none; where it would replace a snapshot, the old or the new one is there."""


@runtime_checkable
class Checkpoints(Protocol):
    """Keeps running processes in a snapshot."""

    async def checkpoint(self, name: str | None = None) -> str:
        """Make a snapshot that includes the processes: they pause for a moment, go on in this sandbox, and continue in
        every sandbox that starts from the snapshot, with their memory and open files.

        Such a sandbox is started with the network, resources, user and work folder of this one, and cannot be reset.
        Its shells cannot be used there; the programs in them go on."""


@runtime_checkable
class Resets(Protocol):
    """Can be made as new, and shows that it is."""

    async def reset(self, spec: SandboxSpec) -> None:
        """Return to the state of a sandbox newly started from `spec`, which may differ from `self.spec` only in `env`,
        `files` and `labels`.

        It ends everything that ran, removes what was written, and then checks that nothing is left: files, processes,
        sockets, shared memory. Raises `SandboxError` if that cannot be shown; the caller must then stop the sandbox.
        """


@runtime_checkable
class Measures(Protocol):
    """Says what it uses."""

    async def stats(self) -> SandboxStats:
        """Return what the sandbox uses now."""


@runtime_checkable
class Logs(Protocol):
    """Keeps a log of what happened in it."""

    async def logs(self) -> str:
        """Return what happened in it lately, one line for each: commands, their ends, refused network, output of its
        first process."""


SANDBOX_PROTOCOLS: tuple[type, ...] = (Streams, Shells, Trees, Snapshots, Checkpoints, Resets, Measures, Logs)

SANDBOX_METHODS = tuple(name for protocol in SANDBOX_PROTOCOLS for name in vars(protocol) if not name.startswith("_"))
"""The methods that a sandbox may have beyond the contract."""

# --- protocols of providers; all work also on a provider that was not started


@runtime_checkable
class Attaches(Protocol):
    """Lets other processes of the same user run commands in its sandboxes."""

    async def attach(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox that another process of this user owns, to run commands in it; `stop` of the returned object
        does not end the sandbox. Raises `SandboxError` if there is none."""


@runtime_checkable
class KeepsSnapshots(Protocol):
    """Keeps the snapshots of its sandboxes."""

    async def snapshots(self) -> list[str]:
        """Return this user's snapshots on this machine that a sandbox can start from, whichever process made them."""

    async def remove_snapshot(self, name: str) -> None:
        """Remove one, whichever process made it. It is idempotent. Sandboxes that run from it go on; a provider for
        which that is impossible raises `SandboxError` and keeps the snapshot."""


@runtime_checkable
class BuildsImages(Protocol):
    """Makes images without a registry."""

    async def build_image(self, name: str | None = None, *, python: bool = False) -> str:
        """Make a small image, with Python in it if `python` is set; returns its name."""


@runtime_checkable
class BuildsDockerfiles(Protocol):
    """Builds the images of tasks (capability `builds`)."""

    async def image_from(self, build: ImageBuild) -> str:
        """Return the name of the image; it is built if no image of the same content is there. Raises `TaskError`, with
        the end of the output, if the build fails or does not end in time."""


def meaning(protocol: type) -> str:
    """Return what a protocol stands for, as a part of a sentence."""
    sentence = (protocol.__doc__ or "").partition(".")[0]
    return sentence[:1].lower() + sentence[1:]


def lacks(who: object, protocol: type) -> PluginError:
    """Return the error for a sandbox or a provider that lacks a protocol which is asked of it."""
    named = f"The sandbox {who.id}" if isinstance(who, Sandbox) else f"The provider {type(who).__name__}"
    return PluginError(f"{named} has no '{protocol.__name__}' ({meaning(protocol)}); use a provider that has it.")
