"""The state of the curriculum: a run goes on from it as if it had not been interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ale.specs.algorithm import RolloutRequest

from .conftest import TASKS, Build, Course, expert


@pytest.mark.parametrize(
    "config",
    [
        {"start": "parallel", "anchor_choice": "random", "refresh_every": 3},
        {"start": "parallel", "refresh_every": 0, "return_signal": "group_centered"},
        {"start": "rollback", "refresh_every": 2, "advance_at": 0.4, "fork_drop": 0.1},
    ],
)
def test_a_run_goes_on_from_a_state_as_if_it_had_not_been_interrupted(build: Build, config: dict[str, Any]) -> None:
    def passes(request: RolloutRequest) -> bool | None:
        luck = request.seed * 2_654_435_761 % 97
        return None if request.start_chunk and luck < 40 else luck > 60

    experts = {"a": [expert(build, "short", 6), expert(build, "long", 9)], "b": [expert(build, "b", 4, "b")]}
    run = Course(build, {"experts": {}, "window": 4, **config}, experts)
    happened = 0
    for _ in range(8):
        other = run.resumed()
        assert other.ipa.state() == run.ipa.state()
        for step in range(6):
            seen = len(run.events)
            assert other.go(passes, 7 - step, TASKS) == run.go(passes, 7 - step, TASKS)
            assert other.metrics() == run.metrics()
            assert other.events[-len(run.events[seen:]) :] == run.events[seen:] or not run.events[seen:]
            happened += len(run.events) - seen
    assert happened > 3, "pointers moved, experts were renewed, cut or dropped"


def test_a_state_holds_each_expert_once(course: Callable[..., Course]) -> None:
    run = course(chunks=5)
    for _ in range(4):
        run.go(lambda r: False)
    assert [t["id"] for t in run.ipa.state()["trajectories"]] == ["expert"]
    assert len(run.ipa.state()["placed"]) == 4 * 4
