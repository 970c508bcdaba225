"""A run whose engines cannot do what it needs on their nodes, or have no place there, is refused in a sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ale.config.run import RunConfig
from ale.errors import ConfigError, PluginError
from ale.registry.validation import validate
from ale.specs.driver import DriverContext
from ale_ray.cluster import RayCluster
from ale_ray.settings import RayConfig, TrainerPlaces

from .conftest import FakeHost, Started


@pytest.fixture
async def cluster(started: Started, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RayCluster]:
    """A cluster of one node, without Ray."""
    started.make = FakeHost
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 8}}])
    made = RayCluster(RayConfig(trainer=TrainerPlaces(ranks=0)), DriverContext())
    yield made
    await made.close()
    assert all(actor.dead.is_set() for actor in started)


def run_with(**sections: Any) -> RunConfig:
    return validate(RunConfig, {"tasks": "bash", "engine": "torch", "trainer": None, **sections})


async def test_what_the_run_needs_of_an_engine_is_checked_on_its_node(cluster: RayCluster, started: Started) -> None:
    run = run_with(needs={"capabilities": {"engine": ["real_tokens"]}})
    await cluster.start_engine(run)
    started.make = lambda: FakeHost(frozenset())
    with pytest.raises(PluginError, match=r"engine: needs\.capabilities\.engine needs an engine with 'real_tokens'"):
        await cluster.scale("engine", 2)


async def test_engines_on_devices_that_the_trainer_does_not_have_are_refused_before_one_starts(
    cluster: RayCluster, started: Started
) -> None:
    run = run_with(trainer="torch", rl={"steps": 1, "multiplex": 1})
    with pytest.raises(ConfigError, match=r"^rl\.multiplex is 1: .* cluster\.trainer\.ranks is 0"):
        await cluster.start_engine(run)
    assert started == []
