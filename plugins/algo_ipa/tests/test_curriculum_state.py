"""The state of the curriculum: a run goes on from it as if it had not been interrupted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ale.specs.algorithm import RolloutRequest
from ale_ipa import IPA

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


@pytest.mark.parametrize("before", [1, 5, 40])
def test_a_fork_counts_its_steps_anew_and_goes_the_same_way(build: Build, before: int) -> None:
    def passes(request: RolloutRequest) -> bool | None:
        member = request.seed % 1009
        return None if request.start_chunk > 6 and member else bool(request.start_chunk or member % 2)

    def went(requests: list[RolloutRequest], run: Course) -> object:
        return [r.start_chunk for r in requests], run.metrics()

    experts = {"a": [expert(build, "short", 6), expert(build, "long", 9)], "b": [expert(build, "b", 8, "b")]}
    run = Course(build, {"experts": {}, "window": 4, "start": "rollback", "refresh_every": 3}, experts)
    for _ in range(before):
        run.go(passes, 5, TASKS)
    state = json.loads(json.dumps(run.ipa.state()))
    last = tuple(replace(t, id=f"before.{t.id}") for t in run.history)  # an id is never given twice
    fork = Course(build, run.config, experts, 0, last, Counter(run.lost))
    fork.ipa.restore(IPA.renumber(state, run.step))
    seen = len(run.events)
    for step in range(24):
        chunks = 2 if step > 12 else 4
        assert went(fork.go(passes, chunks, TASKS), fork) == went(run.go(passes, chunks, TASKS), run)
    shifted = [(kind, {**data, "step": data["step"] - before}) for kind, data in run.events[seen:] if "step" in data]
    ours = [(kind, data) for kind, data in fork.events if "step" in data]
    without_ids = [[(kind, data | {"expert": ""}) for kind, data in events] for events in (ours, shifted)]
    assert without_ids[0] == without_ids[1]
    assert "expert_refreshed" in {kind for kind, _ in ours}
    assert state["placed"].keys() == IPA.renumber(state, run.step)["placed"].keys(), "the state itself is unchanged"
