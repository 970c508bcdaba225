"""Whether a container engine answers here: CI starts both, elsewhere the tests that want one are skipped."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from ale.errors import ConfigError
from ale.plugins import build_driver
from ale.run_config import PluginChoice
from ale.specs.driver import DriverContext


@functools.cache
def answers(engine: str) -> bool:
    """Whether the provider of this name reaches its engine."""

    async def ask() -> None:
        provider: Any = build_driver("sandbox", PluginChoice(use=engine), DriverContext())
        await provider.engine.open()
        await provider.engine.close()

    try:
        asyncio.run(ask())
    except ConfigError:
        return False
    return True
