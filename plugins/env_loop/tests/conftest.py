"""The table at which the tests' episodes are played (`env_table.py`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from env_table import Table, children


@pytest.fixture
async def table() -> AsyncIterator[Callable[..., Table]]:
    """Makes tables with settings of the scaffold. Nothing of them is left afterwards."""
    before, tasks, files = children(), asyncio.all_tasks(), set(os.listdir("/proc/self/fd"))
    made: list[Table] = []

    def make(**settings: Any) -> Table:
        made.append(Table(**settings))
        return made[-1]

    yield make
    for one in made:
        await one.scaffold.close()

    def left() -> list[str]:
        return [
            *(["a process"] if not children() <= before else []),
            *(["a task"] if not asyncio.all_tasks() - {asyncio.current_task()} <= tasks else []),
            *(["an open file"] if len(os.listdir("/proc/self/fd")) > len(files) + 1 else []),
        ]

    for _ in range(3000):  # closed pipes are let go by the loop, a few rounds later
        if not left():
            break
        await asyncio.sleep(0.02)
    assert left() == []
