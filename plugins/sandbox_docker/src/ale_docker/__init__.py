"""Sandboxes as containers of a Docker Engine on this machine."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ale.specs.driver import PluginConfig
from ale_docker.engine import DockerEngine
from ale_resident.container import ContainerConfig, ContainerProvider

__all__ = ["DockerConfig", "DockerProvider"]


class DockerConfig(ContainerConfig):
    """Settings of the Docker provider."""

    url: str | None = Field(
        None, description="Where the engine listens, such as unix:///var/run/docker.sock; null: DOCKER_HOST, or there."
    )
    runtime: str | None = Field(None, description="Runtime of the containers, such as runsc; null: the engine's own.")


class DockerProvider(ContainerProvider):
    """Starts containers of Docker."""

    api_version = ">=1.1,<1.3"
    Config: ClassVar[type[PluginConfig]] = DockerConfig
    config: DockerConfig

    def make_engine(self) -> DockerEngine:
        """Docker, through aiodocker."""
        return DockerEngine(self.config.url, self.config.runtime)
