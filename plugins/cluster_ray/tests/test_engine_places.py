"""An engine's actor says where it is, and reports the states of the pool as events of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale_ray.engine_host import EngineFacts, EngineSpec
from ale_ray.engines import RayEngines
from ale_ray.outbox import Event
from ale_ray.replica import RayReplica

NODE = "4f3a2b1c" + 48 * "0"


def replica(received: list[Any], gpus: float | None) -> RayReplica:
    spec = EngineSpec("torch 0", 0, PluginChoice(use="torch"), DriverContext(), str, Path())
    made = RayReplica(spec, {} if gpus is None else {"num_gpus": gpus}, 1.0, received.append, print)
    made.facts = EngineFacts(1, 32, ("folder",), NODE, 1, frozenset())
    return made


@pytest.mark.parametrize(("gpus", "devices"), [(None, "cpu"), (0, "cpu"), (0.5, "1 GPU"), (1, "1 GPU"), (4, "4 GPUs")])
def test_its_place_is_the_node_as_the_status_names_it_and_its_devices(gpus: float | None, devices: str) -> None:
    assert replica([], gpus).place == f"4f3a2b1c · {devices}"


def test_the_states_of_the_pool_are_events_of_the_run() -> None:
    received: list[Any] = []
    engines = RayEngines([replica(received, 0)], print, lambda: None)
    engines._event("engine_states", engines=[])
    assert received == [Event("engine_states", {"engines": []})]
