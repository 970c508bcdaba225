"""An engine's actor is a replica of the pool: it is started again in order, and what it breaks off is known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ale.errors import EngineError
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, Generation, Sampling
from ale_engines.continuation import NOTHING
from ale_engines.replica import Interrupted
from ale_ray.engine_host import BrokenOff, EngineFacts, EngineSpec
from ale_ray.outbox import Closed, Event, Outbox
from ale_ray.replica import RayReplica

from .conftest import Started

REQUEST = GenerateRequest((1, 2), Sampling(max_tokens=4, stop_token_ids=(9,)), session="s")
WHOLE = Generation((5, 9), (-0.5, -0.5), (0, 0), "stop")


class FakeHost:
    """The actor of an engine; `answer` is what it samples, and without one it samples for ever."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.answer: Any = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.models: list[Path | None] = []
        self.aborted: list[str] = []

    async def start(self, spec: bytes) -> EngineFacts:
        await self.gate.wait()
        return EngineFacts(2, 32, ("folder",), "node", 1)

    async def load_model(self, folder: Path | None) -> EngineFacts:
        self.models.append(folder)
        return EngineFacts(4, 32, ("folder",), "node", 1)

    async def generate(self, name: str, request: Any) -> Any:
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer

    async def abort(self, name: str) -> None:
        self.aborted.append(name)

    async def state(self) -> tuple[dict[str, float], int]:
        return {"sampled_tokens": 3.0}, 1

    async def messages(self) -> list[Any]:
        return await self.outbox.take()

    async def close(self) -> None:
        self.outbox.put(Event("closing", {}))
        self.outbox.put(Closed())


@pytest.fixture
def received() -> list[Any]:
    return []


@pytest.fixture
def replica(started: Started, received: list[Any]) -> RayReplica:
    started.make = FakeHost
    spec = EngineSpec("torch 0", 0, PluginChoice(use="torch"), DriverContext(), str, Path())
    return RayReplica(spec, {}, 0.2, received.append)


async def test_an_engine_is_started_again_in_order_with_its_model(
    replica: RayReplica, started: Started, received: list[Any]
) -> None:
    tokenizer: Any = None
    await replica.start()
    await replica.load_model(Path("model"), tokenizer)
    assert (replica.slots, replica.max_context, replica.version) == (4, 32, 0)
    await asyncio.sleep(0.01)
    assert (replica.requests, replica.metrics()) == (1, {"sampled_tokens": 3.0})
    await replica.restart()
    assert received == [Event("closing", {})]
    assert started[0].dead.is_set()
    assert started[1].made.models == [Path("model")]
    await replica.close()
    await replica.close()
    assert started[1].dead.is_set()


async def test_an_engine_that_does_not_start_in_time_is_an_error(replica: RayReplica, started: Started) -> None:
    held = FakeHost()
    held.gate.clear()
    started.make = lambda: held
    with pytest.raises(EngineError, match=r"^torch 0 took more than 0\.2 s to start\.$"):
        await replica.start()
    await replica.close()
    assert started[0].dead.is_set()


async def test_what_an_actor_breaks_off_is_told_from_what_it_loses(replica: RayReplica, started: Started) -> None:
    await replica.start()
    partial = Generation((5,), (-0.5,), (0,), "length")
    host = started[0].made
    host.answer = WHOLE
    assert await replica.generate(REQUEST) == WHOLE
    host.answer = BrokenOff("it sleeps", partial)
    with pytest.raises(Interrupted, match="it sleeps") as broken:
        await replica.generate(REQUEST)
    assert broken.value.partial == partial
    host.answer = None
    asked = asyncio.create_task(replica.generate(REQUEST))
    await asyncio.sleep(0)
    started[0].kill()
    with pytest.raises(Interrupted, match="torch 0 has died") as lost:
        await asked
    assert lost.value.partial == NOTHING
    with pytest.raises(EngineError, match="torch 0 has died"):
        await replica.check()
    await replica.close()


async def test_a_generation_that_nobody_wants_any_more_is_ended_there(replica: RayReplica, started: Started) -> None:
    await replica.start()
    asked = asyncio.create_task(replica.generate(REQUEST))
    await asyncio.sleep(0.01)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await asyncio.sleep(0.01)
    assert len(started[0].made.aborted) == 1
    await replica.close()
