"""What differs between container engines: the few calls that sandboxes take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ale.errors import SandboxError
from ale.specs.sandbox import Resources, SandboxStats
from ale_resident.image_snapshots import FoundImage

LABEL = "ale.sandbox"
"""Of every container and of every image that was made of one: the sandbox's name."""


@dataclass(frozen=True)
class Plan:
    """A container to create."""

    name: str
    image: str
    command: list[str]
    labels: Mapping[str, str]
    mounts: tuple[tuple[str, str, bool], ...]
    """(path here, path inside, writable)."""
    network: bool
    resources: Resources
    capabilities: tuple[str, ...]
    in_memory: Mapping[str, str] = field(default_factory=dict)
    """Folders, with their modes in octal, that are file systems in memory of `resources.disk_mib` each; the rest is then
    read-only."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    """Kernel settings of its network."""


@dataclass(frozen=True)
class Found:
    """A container that there is."""

    name: str
    labels: Mapping[str, str]
    running: bool


class Engine(ABC):
    """The few calls of a container engine. All raise `SandboxError` where the engine fails."""

    name: ClassVar[str]

    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises `ConfigError`, with what to start or install, where the engine does not answer."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. Idempotent."""

    @abstractmethod
    async def create(self, plan: Plan) -> None:
        """Create a container that the engine removes when it ends. `SandboxError` where the name is taken."""

    @abstractmethod
    async def start(self, name: str) -> None:
        """Start it."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Kill and remove it. Idempotent; returns when it is gone."""

    @abstractmethod
    async def containers(self) -> list[Found]:
        """All that carry the label `LABEL`."""

    @abstractmethod
    async def has_image(self, image: str) -> bool:
        """Whether the image is here."""

    @abstractmethod
    async def pull(self, image: str) -> None:
        """Fetch it from its registry."""

    @abstractmethod
    async def import_image(self, image: str, tar: bytes) -> None:
        """Make an image of a root file system."""

    @abstractmethod
    async def commit(self, name: str, image: str) -> None:
        """Keep a container's file system as an image."""

    @abstractmethod
    async def images(self) -> list[FoundImage]:
        """All that were made of sandboxes (label `LABEL`)."""

    @abstractmethod
    async def remove_image(self, image: str) -> bool:
        """Remove one, by name or id. Idempotent; false where a container uses it."""

    async def can_checkpoint(self) -> frozenset[str]:
        """The agents (`agent`, `root`) whose running processes can be kept here, and be started from there."""
        return frozenset()

    async def checkpoint(self, name: str, archive: Path) -> None:
        """Keep a container with its processes, which go on, in a new file."""
        raise SandboxError(f"{self.name} cannot keep the processes of {name}.")

    async def restore(self, plan: Plan, archive: Path) -> int:
        """Make a container of a checkpoint, as planned but for its image and command, and let it go on; the number of its first
        process."""
        raise SandboxError(f"{self.name} cannot start {plan.name} with processes.")

    @abstractmethod
    async def logs(self, name: str) -> str:
        """What its first process has said; empty where it is gone."""

    @abstractmethod
    async def stats(self, name: str) -> SandboxStats:
        """What it uses now, of which `disk_bytes` is its layer: what it wrote to the image."""
