"""An engine's actor says where it is and what Ray has given it, and the pool's events are the run's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ray_nodes import ENVIRONMENT, connected_nodes

os.environ |= ENVIRONMENT
pytest.importorskip("ray")

from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale_ray.engine_actor import EngineFacts, EngineSpec
from ale_ray.engine_pool import RayEngines
from ale_ray.engine_replica import RayReplica
from ale_ray.rank_placement import RayRankPlaces
from ale_ray.ray_connection import describe_gpus
from ale_ray.settings import EnginePlaces, TrainerPlaces
from ale_testing.recording_channel import RecordingChannel

NODE = "4f3a2b1c" + 48 * "0"


SCRIPTED = PluginChoice(use="scripted", settings={"answers": ["yes"]})


def replica(number: int = 0, choice: PluginChoice = SCRIPTED, **options: Any) -> RayReplica:
    spec = EngineSpec(f"{choice.use} {number}", number, choice, DriverContext(), str, Path.cwd())
    return RayReplica(spec, options, 120.0, print, lambda engine: None)


@pytest.mark.parametrize(("number", "text"), [(0, "cpu"), (1, "1 GPU"), (4, "4 GPUs")])
def test_its_place_is_the_node_as_the_status_names_it_and_its_devices(number: int, text: str) -> None:
    made = replica()
    made.facts = EngineFacts(1, 32, ("folder",), NODE, 1, frozenset(), describe_gpus(number))
    assert made.place == f"4f3a2b1c · {text}"


def test_the_states_of_the_pool_are_events_of_the_run() -> None:
    channel = RecordingChannel()
    engines = RayEngines([replica()], print, channel.event, lambda: None)
    engines._event("engine_states", engines=[])
    assert channel.events == [("engine_states", {"engines": []})]


@pytest.fixture
def two_gpus() -> Iterator[None]:
    """A Ray of one node that counts two GPUs: what an engine without a device of its own needs not have."""
    with connected_nodes(1, cpus=4, gpus=2):
        yield


@pytest.mark.usefixtures("two_gpus")
async def test_an_engine_knows_its_part_and_how_many_gpus_it_has_also_one_that_it_shares_with_a_rank() -> None:
    common = {"num_cpus": 1, "max_restarts": 0, "max_concurrency": 100}
    for number, text in ((0, "cpu"), (2, "2 GPUs")):
        async with replica(**common, num_gpus=number) as engine:
            assert engine.facts.devices == text
            assert engine.frees_memory == (number == 0), "this one has no sleep, which matters on GPUs alone"
            assert engine.facts.part == "", "it is of no other engine"
    mixed = PluginChoice(use="mixed", settings={"parts": [{"use": "torch"}] * 2})
    async with replica(1, mixed, **common) as engine:
        assert engine.facts.part == "torch 1"
    places = RayRankPlaces(TrainerPlaces(ranks=1, devices=1), 60.0)
    await places.reserve(EnginePlaces(devices=1), lent=1)
    async with replica(**common | places.engine_options(0)) as engine:
        assert engine.facts.devices == "1 GPU"
        (rank,) = places.roles()
        assert rank == ("rank 0", engine.facts.node, 0, "1 GPU", "placed")
    places.release()
