"""The driver of a trainer: whatever becomes of its start, its ranks end with it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ale.specs.driver import DriverContext, PluginConfig
from ale_torch.training.ranked_trainer import RankedTrainer


class Ranks:
    """What `make_workers` returns."""

    def __init__(self) -> None:
        self.closed = False

    def call(self, method: str, *args: Any) -> list[Any]:
        return []

    def kill(self) -> None:
        raise AssertionError("nothing hangs")

    def close(self) -> None:
        self.closed = True


class Trainer(RankedTrainer):
    """A trainer whose ranks take as long to start as a test wants."""

    name = "slow"
    api_version = ">=1.0,<2"
    transports = ("memory",)
    Config = PluginConfig

    def __init__(self) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.asked, self.ready, self.ranks = asyncio.Event(), threading.Event(), Ranks()
        self.loop = asyncio.get_running_loop()

    def make_workers(self) -> Any:
        self.loop.call_soon_threadsafe(self.asked.set)
        assert self.ready.wait(60)
        return self.ranks


async def test_a_start_that_is_cancelled_ends_the_ranks_that_were_being_started() -> None:
    trainer = Trainer()
    starting = asyncio.ensure_future(trainer.__aenter__())
    async with asyncio.timeout(60):
        await trainer.asked.wait()
        starting.cancel()
        trainer.loop.call_soon(trainer.ready.set)
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert trainer.ranks.closed
