"""What the tests of the pool share: a pool over sandboxes in memory that fail when a test wants it.

With real sandboxes: tests/test_pool.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ale.config.pool import PoolConfig
from ale.rollout.sandbox_pool.lease import LeasedSandbox
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.specs.sandbox import SandboxSpec
from ale_testing.fake_sandboxes import MemoryProvider, MemorySandbox

ONE, OTHER = SandboxSpec(image="one"), SandboxSpec(image="other")


@asynccontextmanager
async def pool_of(**settings: Any) -> AsyncIterator[tuple[SandboxPool, MemoryProvider]]:
    """A pool over sandboxes in memory; nothing of it may be left."""
    before = asyncio.all_tasks()
    provider = MemoryProvider()
    async with SandboxPool(provider, PoolConfig(**settings), provider.context.channel) as pool:
        yield pool, provider
    assert provider.alive == set(), "closing the pool stops everything"
    assert pool.slots.all == set()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before, "no task is left"


async def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        await asyncio.sleep(0.001)


def inner(box: LeasedSandbox) -> MemorySandbox:
    """The provider's sandbox."""
    assert isinstance(box.inner, MemorySandbox)
    return box.inner
