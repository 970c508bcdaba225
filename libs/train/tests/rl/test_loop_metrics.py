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


@pytest.mark.parametrize(("backend", "place"), [(SimpleNamespace(place="cuda:1"), "cuda:1"), (SimpleNamespace(), "")])
async def test_the_event_of_a_step_says_where_the_trainer_is_if_it_knows(
    backend: Any, place: str, tmp_path: Path
) -> None:
    producer: Any = SimpleNamespace(buffer_metrics=dict, open_groups=set(), replaced_tokens=0)
    with RunStore.create(tmp_path) as store:
        bench: Any = SimpleNamespace(
            store=store,
            backend=backend,
            engine=SimpleNamespace(version=3),
            sessions=SimpleNamespace(),
            rollouts=SimpleNamespace(advance=lambda: None),
        )
        watch = LoopMetrics(bench, RLConfig(), RolloutSlots(4, 1), producer)
        async with watch:
            watch.step_metrics(1, [])
        ((_, kind, data),) = store.events()
    assert (kind, data["step"], data["version"], data["place"]) == ("roles", 1, 3, place)
    assert [state for state, _, _ in data["trainer"]] == ["wait_data"]
