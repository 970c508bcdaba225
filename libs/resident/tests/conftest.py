"""Both container engines, where they run. CI starts them; elsewhere tests without one are skipped."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from engines import answers

from ale.specs.driver import DriverContext

PROVIDERS = {"docker": ("ale_docker", "DockerProvider"), "podman": ("ale_podman", "PodmanProvider")}


def provider_of(engine: str, **settings: Any) -> Any:
    """A provider, not started yet."""
    module, name = PROVIDERS[engine]
    cls = getattr(importlib.import_module(module), name)
    return cls(cls.Config(**settings), DriverContext(run_id="r1", labels={"run": "r1"}))


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in PROVIDERS])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine."""
    if not answers(request.param):
        pytest.skip(f"{request.param} does not answer")
    return str(request.param)


@pytest.fixture
async def provider(engine: str) -> AsyncIterator[Any]:
    """A provider of each engine."""
    async with provider_of(engine) as started:
        yield started
