"""Both container engines, where they run. CI starts them; elsewhere tests without one are skipped."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ale.errors import ConfigError
from ale.specs.driver import DriverContext

PROVIDERS = {"docker": ("ale_docker", "DockerProvider"), "podman": ("ale_podman", "PodmanProvider")}


def provider_of(engine: str, **settings: Any) -> Any:
    """A provider, not started yet."""
    module, name = PROVIDERS[engine]
    cls = getattr(importlib.import_module(module), name)
    return cls(cls.Config(**settings), DriverContext(run_id="r1", labels={"run": "r1"}))


@pytest.fixture(scope="session")
def running() -> set[str]:
    """The engines that answer."""
    found = set()
    for engine in PROVIDERS:

        async def ask(name: str = engine) -> None:
            connection = provider_of(name).make_engine()
            await connection.open()
            await connection.close()

        try:
            asyncio.run(ask())
        except ConfigError:
            continue
        found.add(engine)
    return found


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in PROVIDERS])
def engine(request: pytest.FixtureRequest, running: set[str]) -> str:
    """The name of each engine."""
    if request.param not in running:
        pytest.skip(f"{request.param} does not answer")
    return str(request.param)


@pytest.fixture
async def provider(engine: str) -> AsyncIterator[Any]:
    """A provider of each engine."""
    async with provider_of(engine) as started:
        yield started
