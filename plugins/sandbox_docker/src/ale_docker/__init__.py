"""Sandboxes as containers of a Docker Engine on this machine."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ale.specs.driver import PluginConfig
from ale_docker.engine import DockerEngine
from ale_sandbox.containers.config import ContainerConfig
from ale_sandbox.containers.provider import ContainerProvider

__all__ = ["DockerConfig", "DockerProvider"]


class DockerConfig(ContainerConfig):
    """Settings of the Docker provider."""

    url: str | None = Field(
        None, description="Address of the Docker engine; null: DOCKER_HOST, or unix:///var/run/docker.sock."
    )
    runtime: str | None = Field(None, description="Container runtime, such as runsc; null: the engine's default.")


class DockerProvider(ContainerProvider):
    """Starts containers of Docker."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = DockerConfig
    config: DockerConfig

    def make_engine(self) -> DockerEngine:
        """Make the engine, which uses aiodocker."""
        return DockerEngine(self.config.url, self.config.runtime)
