"""Tests get sandbox providers from here if these work on this machine. CI starts both container engines; on other
machines, tests that need a missing one are skipped."""

from __future__ import annotations

import asyncio
import functools
import shutil
from typing import Any

import pytest

from ale.errors import ConfigError
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext


def provider_of(use: str, context: DriverContext | None = None, **settings: Any) -> Any:
    """A provider by its plugin's name, not started yet."""
    return build_driver("sandbox", PluginChoice(use=use, settings=settings), context or DriverContext())


def must_answer(use: str) -> str:
    """The name of a provider that works here; skips the test where it does not."""
    if use == "local" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if use != "local" and not answers(use):
        pytest.skip(f"{use} does not answer")
    return use


@functools.cache
def answers(engine: str) -> bool:
    """Whether the provider of this name reaches its engine."""

    async def ask() -> None:
        provider = provider_of(engine)
        await provider.engine.open()
        await provider.engine.close()

    try:
        asyncio.run(ask())
    except ConfigError:
        return False
    return True
