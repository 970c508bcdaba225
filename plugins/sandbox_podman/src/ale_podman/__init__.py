"""Sandboxes as containers of a Podman service on this machine."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ale.specs.driver import PluginConfig
from ale_podman.engine import PodmanEngine
from ale_resident.container import ContainerConfig, ContainerProvider

__all__ = ["PodmanConfig", "PodmanProvider"]


class PodmanConfig(ContainerConfig):
    """Settings of the Podman provider."""

    url: str | None = Field(
        None,
        description="Where the service listens, such as unix:///run/podman/podman.sock; null: CONTAINER_HOST, or the user's own.",
    )


class PodmanProvider(ContainerProvider):
    """Starts containers of Podman."""

    api_version = ">=1.1,<1.3"
    Config: ClassVar[type[PluginConfig]] = PodmanConfig
    capabilities: ClassVar[frozenset[str]] = ContainerProvider.capabilities | {"checkpoint"}
    config: PodmanConfig

    def make_engine(self) -> PodmanEngine:
        """Podman, through podman-py."""
        return PodmanEngine(self.config.url)
