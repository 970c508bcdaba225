"""Both container engines, where they run. CI starts them; elsewhere tests without one are skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ale_testing.sandbox_providers import answers, provider_of

ENGINES = ("docker", "podman")


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ENGINES])
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
