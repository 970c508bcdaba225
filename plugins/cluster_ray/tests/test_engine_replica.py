"""An engine's actor is a replica of the pool: it is started again in order, and what it breaks off is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ale.errors import EngineError, PluginError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.choice import PluginChoice
from ale.specs.driver import Channel, DriverContext
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, PolicyVersion, Sampling
from ale_engines.pool import health, member
from ale_engines.pool.replica import Interrupted
from ale_ray import actor_lifecycle as actors_module
from ale_ray import engine_calls
from ale_ray import engine_replica as replica_module
from ale_ray.actor_messages import Event
from ale_ray.engine_actor import BrokenOff, EngineSpec
from ale_ray.engine_pool import RayEngines
from ale_ray.engine_replica import RayReplica

from .conftest import FakeHost, Started, until

REQUEST = GenerateRequest((1, 2), Sampling(max_tokens=4, stop_token_ids=(9,)), session="s")
WHOLE = Generation((5, 9), (-0.5, -0.5), (0, 0), "stop")


@pytest.fixture
def received() -> list[Any]:
    return []


@pytest.fixture
def replica(started: Started, received: list[Any]) -> RayReplica:
    started.make = FakeHost
    return make_replica(received, lambda engine: None)


def make_replica(received: list[Any], check_started: Callable[[Any], None], start_s: float = 60.0) -> RayReplica:
    spec = EngineSpec("torch 0", 0, PluginChoice(use="torch"), DriverContext(), str, Path())
    return RayReplica(spec, {}, start_s, received.append, check_started)


async def test_an_engine_is_started_again_in_order_with_its_model(
    replica: RayReplica, started: Started, received: list[Any]
) -> None:
    tokenizer: Any = None
    await replica.start()
    await replica.load_model(Path("model"), tokenizer)
    assert (replica.slots, replica.max_context, replica.version) == (4, 32, 0)
    await until(replica.metrics)
    assert (replica.requests, replica.metrics()) == (1, {"sampled_tokens": 3.0})
    await replica.restart()
    assert received == [Event("closing", {})]
    assert started[0].dead.is_set()
    assert started[1].made.models == [Path("model")]
    await replica.close()
    await replica.close()
    assert started[1].dead.is_set()


async def test_an_engine_that_does_not_start_in_time_is_an_error(started: Started, received: list[Any]) -> None:
    held = FakeHost()
    held.gate.clear()
    started.make = lambda: held
    replica = make_replica(received, lambda engine: None, start_s=0.2)
    with pytest.raises(EngineError, match=r"^torch 0 took more than 0\.2 s to start\.$"):
        await replica.start()
    await replica.close()
    assert started[0].dead.is_set()


async def test_an_engine_that_cannot_do_on_its_node_what_the_run_needs_does_not_start_there(
    started: Started, received: list[Any]
) -> None:
    def check_started(engine: Any) -> None:
        if "real_tokens" not in engine.capabilities:
            raise PluginError("The run needs real tokens.")

    hosts = iter([FakeHost(), FakeHost(frozenset())])
    started.make = lambda: next(hosts)
    async with make_replica(received, check_started) as replica:
        await replica.load_model(None, byte_tokenizer())
        with pytest.raises(PluginError, match="The run needs real tokens"):
            await replica.restart()


async def test_an_engine_that_stops_for_good_while_it_loads_holds_up_new_weights_no_longer_than_its_restart(
    replica: RayReplica, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors_module, "SILENT_S", 2.0)
    monkeypatch.setattr(replica_module, "STATE_S", 0.001)
    monkeypatch.setattr(member, "PROBE_S", 0.001)
    notes: list[str] = []
    pool = RayEngines([replica], notes.append, Channel().event, lambda: None)
    async with pool as engines, asyncio.timeout(60):
        await engines.load_model(None, byte_tokenizer())
        started[0].made.moves.clear()
        await engines.load_weights(PolicyVersion(1, FolderTicket(Path("weights"))))
        assert engines.version == 1, "it loads them once it serves again"
        assert len(started) == 2
        assert started[0].dead.is_set()
        assert notes == [
            "torch 0 is started again: torch 0 did not answer for 2 s, and was ended.",
            "torch 0 serves again, with version 0.",
        ]


async def test_an_engine_that_is_given_up_has_no_actor_left(
    replica: RayReplica, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(FakeHost):
        async def load_weights(self, policy: PolicyVersion) -> None:
            raise EngineError("It cannot read them.")

    monkeypatch.setattr(health, "BACKOFF_S", 0.001)
    monkeypatch.setattr(member, "PROBE_S", 0.001)
    pool = RayEngines([replica], print, Channel().event, lambda: None)
    async with pool as engines, asyncio.timeout(60):
        await engines.load_model(None, byte_tokenizer())
        await engines.load_weights(PolicyVersion(1, FolderTicket(Path("weights"))))
        started.make = Refusing
        started[0].kill()
        engines.suspect("torch 0")
        await until(lambda: len(started) == 1 + health.RESTARTS)
        await started[-1].dead.wait()
        assert engines.replica_statuses()[0].state is member.State.FAILED
        assert all(actor.dead.is_set() for actor in started)


async def test_of_what_an_actor_breaks_off_all_is_known_and_of_what_it_loses_what_it_had_said(
    replica: RayReplica, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_calls, "FOLLOW_S", 0.001)
    await replica.start()
    partial = Generation((5,), (-0.5,), (0,), "length")
    host = started[0].made
    host.answer = WHOLE
    assert await replica.generate(REQUEST) == WHOLE
    host.answer = BrokenOff("it sleeps", partial)
    with pytest.raises(Interrupted, match="it sleeps") as broken:
        await replica.generate(REQUEST)
    assert broken.value.partial == partial
    host.answer, host.so_far = None, partial
    asked = asyncio.create_task(replica.generate(REQUEST))
    await until(lambda: host.known == 1)
    longer = host.so_far = Generation((5, 6, 7), (-0.5, -1.5, -2.5), (0, 1, 1), "length")
    await until(lambda: host.known == 3)
    started[0].kill()
    with pytest.raises(Interrupted, match="torch 0 has died") as lost:
        await asked
    assert lost.value.partial == longer
    with pytest.raises(EngineError, match="torch 0 has died"):
        await replica.check()
    await replica.close()


async def test_a_generation_that_nobody_wants_any_more_is_ended_there(replica: RayReplica, started: Started) -> None:
    await replica.start()
    asked = asyncio.create_task(replica.generate(REQUEST))
    host = started[0].made
    await until(lambda: host.generations)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await until(lambda: host.aborted)
    assert host.aborted == host.generations
    await replica.close()
