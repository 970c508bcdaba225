"""Sandboxes as containers of a Podman service on this machine."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ale.specs.driver import PluginConfig
from ale_podman.engine import PodmanEngine
from ale_sandbox.containers.checkpoint_sandbox import CheckpointSandbox
from ale_sandbox.containers.config import ContainerConfig
from ale_sandbox.containers.provider import ContainerProvider

__all__ = ["PodmanConfig", "PodmanProvider"]


class PodmanConfig(ContainerConfig):
    """Settings of the Podman provider."""

    url: str | None = Field(
        None,
        description="Address of the service, such as unix:///run/podman/podman.sock; null: CONTAINER_HOST, or the "
        "user's own service.",
    )


class PodmanProvider(ContainerProvider):
    """Starts containers of Podman."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = PodmanConfig
    sandbox_type = CheckpointSandbox
    config: PodmanConfig

    def make_engine(self) -> PodmanEngine:
        """Make the engine, which uses podman-py."""
        return PodmanEngine(self.config.url)
