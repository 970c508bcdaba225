"""What the provider says where no Docker Engine answers."""

from __future__ import annotations

from pathlib import Path

import aiodocker.docker
import pytest

from ale.errors import ConfigError
from ale.specs.driver import DriverContext
from ale_docker import DockerConfig, DockerProvider


async def test_a_machine_without_docker_is_told_how_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiodocker.docker, "_sock_search_paths", [])
    for variable in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    provider = DockerProvider(DockerConfig(), DriverContext())
    with pytest.raises(
        ConfigError, match=r"does not answer \(there is no socket .*start it .*or choose sandbox: local"
    ):
        await provider.__aenter__()


async def test_an_engine_that_does_not_answer_is_named(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/docker.sock"
    provider = DockerProvider(DockerConfig(url=url), DriverContext())
    with pytest.raises(ConfigError, match=f"The Docker Engine at {url} does not answer"):
        await provider.__aenter__()
