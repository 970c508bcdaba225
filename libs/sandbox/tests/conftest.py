"""Both container engines, where they run, and every provider whose sandboxes others can attach to. CI starts the
engines; elsewhere tests without one are skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.sandbox_providers import must_answer, provider_of

from ale.specs.driver import Channel, DriverContext

from .attached_client import spec_for

SECRET = "hunter2-and-more"
ENGINES = ("docker", "podman")


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ENGINES])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine."""
    return must_answer(request.param)


@pytest.fixture
async def provider(engine: str) -> AsyncIterator[Any]:
    """A provider of each engine."""
    async with provider_of(engine) as started:
        yield started


class RedactingChannel(Channel):
    """Knows one secret."""

    def redact(self, text: str) -> str:
        return text.replace(SECRET, "${oc.env:KEY}")


def provider_with_secrets(name: str) -> Any:
    """A provider by name and isolation, not started yet; the door must not tell its secrets."""
    use, _, isolation = name.partition("-")
    return provider_of(
        use, DriverContext(channel=RedactingChannel()), **({"isolation": isolation} if isolation else {})
    )


@pytest.fixture(
    params=[
        pytest.param("local", marks=pytest.mark.bwrap),
        "local-none",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.podman),
    ]
)
def use(request: pytest.FixtureRequest) -> str:
    """Each kind of provider that has a door."""
    return must_answer(request.param) if request.param in ENGINES else str(request.param)


@pytest.fixture
async def any_provider(use: str) -> AsyncIterator[Any]:
    """One of them, started."""
    async with provider_with_secrets(use) as started:
        yield started


@pytest.fixture
async def local() -> AsyncIterator[Any]:
    """The one that needs no engine."""
    async with provider_with_secrets("local") as started:
        yield started


@pytest.fixture
async def box(local: Any) -> AsyncIterator[Any]:
    async with await local.start_sandbox(spec_for(local)) as started:
        yield started
