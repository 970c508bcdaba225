"""What the loop notes of a step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ale.store.run_store import RunStore
from ale_train.config.rl import RLConfig
from ale_train.rl.loop_metrics import LoopMetrics
from ale_train.rl.rollout_slots import RolloutSlots


def loop_metrics(store: RunStore, backend: Any, slots: RolloutSlots) -> LoopMetrics:
    """Those of a loop that trains on nothing."""
    producer: Any = SimpleNamespace(buffer_metrics=dict, open_groups=set(), replaced_tokens=0)
    bench: Any = SimpleNamespace(
        store=store,
        backend=backend,
        engine=SimpleNamespace(version=3),
        sessions=SimpleNamespace(),
        rollouts=SimpleNamespace(advance=lambda: None),
    )
    return LoopMetrics(bench, RLConfig(), slots, producer)


@pytest.mark.parametrize(("backend", "place"), [(SimpleNamespace(place="cuda:1"), "cuda:1"), (SimpleNamespace(), "")])
async def test_the_event_of_a_step_says_where_the_trainer_is_if_it_knows(
    backend: Any, place: str, tmp_path: Path
) -> None:
    with RunStore.create(tmp_path) as store:
        watch = loop_metrics(store, backend, RolloutSlots(4, 1))
        async with watch:
            watch.step_metrics(1, [])
        ((_, kind, data),) = store.events()
    assert (kind, data["step"], data["version"], data["place"]) == ("roles", 1, 3, place)
    assert [state for state, _, _ in data["trainer"]] == ["wait_data"]


async def test_the_limit_of_a_step_is_the_lowest_in_it_also_where_it_was_lifted_again(tmp_path: Path) -> None:
    slots = RolloutSlots(8, 1)
    with RunStore.create(tmp_path) as store:
        watch = loop_metrics(store, SimpleNamespace(), slots)
        async with watch:
            slots.limit = 2
            slots.limit = 6
            found = [watch.step_metrics(step, [])["in_flight/limit"] for step in (1, 2)]
    assert found == [2.0, 6.0]
