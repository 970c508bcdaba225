"""What rollout workers are told of the engines is what the pool knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ale.session.tokenizer import byte_tokenizer
from ale.specs.choice import PluginChoice
from ale.specs.driver import Channel, DriverContext
from ale.specs.engine import FolderTicket, PolicyVersion
from ale_engines.pool import member
from ale_engines.pool.member import State
from ale_ray.engine_actor import EngineSpec
from ale_ray.engine_pool import RayEngines
from ale_ray.engine_replica import RayReplica
from ale_ray.routed_engine import EngineTable, TableRow

from .conftest import FakeHost, Started


def make_spec(number: int) -> EngineSpec:
    return EngineSpec(f"torch {number}", number, PluginChoice(use="torch"), DriverContext(), str, Path())


class Told:
    """The rollout workers; `tables` are those that they got and that no test has seen."""

    def __init__(self) -> None:
        self.tables: asyncio.Queue[EngineTable] = asyncio.Queue()
        self.reports = 0
        self.take = asyncio.Event()
        self.take.set()

    async def find(self, true: Callable[[TableRow], bool]) -> EngineTable:
        """Return the next table whose first row is so."""
        while not true((table := await self.tables.get()).rows[0]):
            pass
        return table

    async def use_model(self, folder: Path | None) -> None: ...

    async def use_engines(self, table: EngineTable) -> None:
        self.tables.put_nowait(table)
        await self.take.wait()

    def report_states(self) -> None:
        self.reports += 1


async def test_an_engine_that_falls_asleep_is_interrupted_when_the_workers_know_that_it_leaves(
    started: Started,
) -> None:
    started.make = FakeHost
    pair = [RayReplica(make_spec(number), {}, 60.0, print, lambda engine: None) for number in range(2)]
    workers: Any = Told()
    async with RayEngines(pair, print, Channel().event, lambda: None) as engines, asyncio.timeout(60):
        await engines.load_model(None, byte_tokenizer())
        engines.workers = workers
        host = started[0].made
        host.requests = 0
        workers.take.clear()
        sleeping = asyncio.create_task(engines.shrink(["torch 0"]))
        await workers.find(lambda row: row.state is State.LEAVING)
        await asyncio.sleep(0.01)
        assert host.calls == []
        workers.take.set()
        await sleeping
        assert host.calls == ["interrupt", "sleep"]


async def test_while_an_engine_that_was_started_again_loads_episodes_still_begin_with_the_current_version(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "PROBE_S", 0.001)
    started.make = FakeHost
    workers: Any = Told()
    engine = RayReplica(make_spec(0), {}, 60.0, print, lambda engine: None)
    async with RayEngines([engine], print, Channel().event, lambda: None) as engines, asyncio.timeout(60):
        engines.workers = workers
        await engines.load_model(None, byte_tokenizer())
        await engines.load_weights(PolicyVersion(3, FolderTicket(Path("weights"))))
        assert workers.reports == 1, "they report their states when the engines do"
        loading = FakeHost()
        loading.moves.clear()
        started.make = lambda: loading
        started[0].kill()
        engines.suspect("torch 0")
        table = await workers.find(lambda row: row.state is State.LOST and row.version == 0)
        assert table.version == 3
        loading.moves.set()
        table = await workers.find(lambda row: row.state is State.SERVING)
        assert table.rows[0].version == 3
