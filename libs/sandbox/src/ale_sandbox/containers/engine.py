"""The contract of a container engine such as Docker or Podman: the few calls that sandboxes need."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ale.errors import SandboxError
from ale.specs.sandbox import Resources
from ale.specs.sandbox_protocols import SandboxStats

LABEL = "ale.sandbox"
"""Label of every container, and of every image made from one; its value is the sandbox's name."""
ANSWER_S = 120.0
"""How long an engine may take to answer, where it neither moves nor builds images."""
REMOVE_S = 30.0
"""How long an engine tries to remove a container, which it refuses while the container ends by itself."""


@dataclass(frozen=True)
class ContainerPlan:
    """A container to create."""

    name: str
    image: str
    command: list[str]
    labels: Mapping[str, str]
    mounts: tuple[tuple[str, str, bool], ...]
    """(path on the host, path inside, writable)."""
    network: bool
    resources: Resources
    capabilities: tuple[str, ...]
    in_memory: Mapping[str, str] = field(default_factory=dict)
    """Folders, with their modes in octal, that are in-memory file systems of `resources.disk_mib` each; if there are
    any, the rest of the file system is read-only."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    """Kernel settings of the container's network."""


@dataclass(frozen=True)
class FoundContainer:
    """An existing container of a sandbox."""

    name: str
    labels: Mapping[str, str]
    running: bool


@dataclass(frozen=True)
class FoundImage:
    """An image that was made from a sandbox's container."""

    id: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    created_at: float


class BuildFailed(Exception):
    """A Dockerfile could not be built; the message is the end of the output."""


def read_image_env(config: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the environment in an image's configuration, as both engines report it."""
    return dict(line.split("=", 1) for line in (config or {}).get("Env") or () if "=" in line)


def read_build_line(line: bytes, output: list[str]) -> None:
    """Add one line of an engine's answer to the output so far. Raises `BuildFailed` if it reports a failed build."""
    if not line.strip():
        return
    said = json.loads(line)
    output.append(str(said.get("stream", "")))
    if "error" in said:
        raise BuildFailed("".join(output[-40:]) + str(said["error"]))


class Engine(ABC):
    """The calls of a container engine. All raise `SandboxError` if the engine fails or does not answer."""

    name: ClassVar[str]

    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises `ConfigError`, which says what to start or install, if the engine does not answer."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. Idempotent."""

    @abstractmethod
    async def create(self, plan: ContainerPlan) -> None:
        """Create a container that the engine removes when it ends. Raises `SandboxError` if the name is taken."""

    @abstractmethod
    async def start(self, name: str) -> None:
        """Start it."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Kill and remove a container. Idempotent; returns when it is gone. Raises `SandboxError`, also if the engine
        refuses for `REMOVE_S`, or does not answer in time."""

    @abstractmethod
    async def containers(self) -> list[FoundContainer]:
        """List all containers with the label `LABEL`."""

    @abstractmethod
    async def find_image(self, image: str) -> str | None:
        """Return the id of an image by its name; None if it is not on this machine."""

    @abstractmethod
    async def image_env(self, image: str) -> dict[str, str]:
        """Return the environment that an image gives to its programs (`ENV` in a Dockerfile)."""

    @abstractmethod
    async def pull(self, image: str) -> None:
        """Pull an image from its registry."""

    @abstractmethod
    async def import_image(self, image: str, tar: bytes) -> None:
        """Make an image from a root file system."""

    @abstractmethod
    async def build(self, image: str, context: bytes) -> None:
        """Build an image from a tar archive with a Dockerfile. Cancelling the call ends the build, at the
        latest after its running step. Raises `BuildFailed` if the Dockerfile is at fault."""

    @abstractmethod
    async def commit(self, name: str, image: str) -> None:
        """Save a container's file system as an image."""

    @abstractmethod
    async def images(self, label: str | None = LABEL) -> list[FoundImage]:
        """List the images with a label, which are those that were made from sandboxes, or with None all images."""

    @abstractmethod
    async def remove_image(self, image: str) -> bool:
        """Remove an image by name or id. Idempotent; returns false if a container uses it."""

    async def can_checkpoint(self) -> frozenset[str]:
        """Return the users (`agent`, `root`) whose running processes this engine can checkpoint and restore."""
        return frozenset()

    async def checkpoint(self, name: str, archive: Path) -> None:
        """Write a container and its processes, which continue, to a new file."""
        raise SandboxError(f"{self.name} cannot checkpoint the processes of {name}.")

    async def restore(self, plan: ContainerPlan, archive: Path) -> int:
        """Restore a container from a checkpoint and let it continue; only image and command of the plan are not used.
        Returns the id of its first process."""
        raise SandboxError(f"{self.name} cannot restore {plan.name} from a checkpoint.")

    @abstractmethod
    async def logs(self, name: str) -> str:
        """Return the output of the container's first process; empty if the container is gone."""

    @abstractmethod
    async def stats(self, name: str) -> SandboxStats:
        """Return what the container uses now; `disk_bytes` is its layer, which holds what it wrote."""
