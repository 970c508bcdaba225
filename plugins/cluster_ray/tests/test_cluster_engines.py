"""The engines of a run: what cannot work on their nodes is refused in a sentence, and how many there are can change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ale.config.capabilities import Requirements
from ale.errors import ConfigError, PluginError
from ale.registry.validation import validate
from ale.session.tokenizer import byte_tokenizer
from ale.specs.cluster import EnginePlan
from ale.specs.driver import DriverContext
from ale_ray import control_files as control
from ale_ray.cluster import RayCluster
from ale_ray.control_files import FOLDER, read_roles
from ale_ray.settings import EnginePlaces, RayConfig, TrainerPlaces
from ale_train.config.run import RunConfig
from ale_train.workbench.workbench import plan_engine

from .conftest import FakeHost, Started


@pytest.fixture(autouse=True)
def one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray says that it has."""
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 8}}])


@pytest.fixture
async def cluster(started: Started) -> AsyncIterator[RayCluster]:
    """A cluster without Ray."""
    started.make = FakeHost
    made = RayCluster(RayConfig(trainer=TrainerPlaces(ranks=0)), DriverContext())
    yield made
    await made.close()
    assert all(actor.dead.is_set() for actor in started)


def run_with(**sections: Any) -> RunConfig:
    return validate(RunConfig, {"tasks": "bash", "engine": "torch", "trainer": None, **sections})


def plan_of(run: RunConfig) -> EnginePlan:
    return plan_engine(run, Requirements(run), train=True)


async def test_what_the_run_needs_of_an_engine_is_checked_on_its_node(cluster: RayCluster, started: Started) -> None:
    run = run_with(needs={"capabilities": {"engine": ["real_tokens"]}})
    await cluster.start_engine(plan_of(run))
    started.make = lambda: FakeHost(frozenset())
    with pytest.raises(PluginError, match=r"engine: needs\.capabilities\.engine needs an engine with 'real_tokens'"):
        await cluster.scale("engine", 2)


async def test_engines_on_devices_that_the_trainer_does_not_have_are_refused_before_one_starts(
    cluster: RayCluster, started: Started
) -> None:
    run = run_with(trainer="torch", rl={"steps": 1, "multiplex": 1})
    with pytest.raises(ConfigError, match=r"^rl\.multiplex is 1: .* cluster\.trainer\.ranks is 0"):
        await cluster.start_engine(plan_of(run))
    assert started == []


async def test_a_run_that_goes_on_with_a_new_cluster_keeps_the_numbers_that_it_was_scaled_to(
    cluster: RayCluster, started: Started
) -> None:
    engines: Any = await cluster.start_engine(plan_of(run_with()))
    await engines.load_model(None, byte_tokenizer())
    assert await cluster.scale("engine", 3) == "The run has 3 engines now: torch 0, torch 1, torch 2."
    await cluster.close()
    again = RayCluster(cluster.config, DriverContext())
    engines = await again.start_engine(plan_of(run_with()))
    assert [replica.name for replica in engines.replicas] == ["torch 0", "torch 1", "torch 2"]
    await engines.load_model(None, byte_tokenizer())
    assert "torch 3" in await again.scale("engine", 4), "a new one has a new name"
    await again.close()


async def test_engines_on_the_trainers_devices_stay_there_when_the_run_is_scaled(started: Started) -> None:
    async def reserve(*room: Any) -> None: ...

    def make() -> FakeHost:
        host = FakeHost()
        host.requests = 0
        return host

    started.make = make
    config = RayConfig(engine=EnginePlaces(replicas=3), trainer=TrainerPlaces(ranks=2))
    cluster = RayCluster(config, DriverContext())
    lent: list[int] = []
    cluster._places = SimpleNamespace(
        count=2, reserve=reserve, engine_options=lambda number: lent.append(number) or {}, release=lambda: None
    )
    engines: Any = await cluster.start_engine(plan_of(run_with(trainer="torch", rl={"steps": 1, "multiplex": 2})))
    await engines.load_model(None, byte_tokenizer())
    assert lent == [0, 1]
    await cluster.scale("engine", 4)
    assert await cluster.scale("engine", 2) == "The run has 2 engines now: torch 1, torch 2."
    with pytest.raises(ConfigError, match=r"^rl\.multiplex is 2: so many engines lie on the trainer's devices"):
        await cluster.scale("engine", 1)
    await cluster.close()


async def test_the_run_goes_on_while_ray_says_which_nodes_it_has(
    cluster: RayCluster, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def describe_nodes() -> str:
        asked.set()
        assert answer.wait(60), "the event loop stands still"
        return "1 node"

    monkeypatch.setattr(control, "describe_nodes", describe_nodes)
    await cluster.start_engine(plan_of(run_with()))
    cluster._folder, cluster._connection.opened = tmp_path / FOLDER, True
    scaling = asyncio.create_task(cluster.scale("engine", 1))
    assert await asyncio.to_thread(asked.wait, 60)
    answer.set()
    await scaling
    assert [row["name"] for row in read_roles(tmp_path / FOLDER)["roles"]] == ["torch 0"]
    cluster._connection.opened = False
