"""A success of the policy becomes a task's expert where it is shorter, or where the task is rarely solved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ale.specs.algorithm import RolloutRequest

from .conftest import TASKS, Course, expert_of


def test_a_shorter_success_of_the_policy_becomes_the_expert_when_it_is_time(course: Callable[..., Course]) -> None:
    run = course(chunks=9, start="parallel", refresh_every=3)
    for _ in range(3):
        assert max(r.start_chunk for r in run.go(lambda r: r.start_chunk == 0, chunks=4)) == 8
    requests = run.plan()
    assert max(r.start_chunk for r in requests) == 3
    assert {expert_of(r) for r in requests if r.start} == {"1.0"}, "the first of the shortest"
    assert [(e["chunks"], e["before"]) for e in run.of("expert_refreshed")] == [(4, 9)]


@pytest.mark.parametrize(
    ("passes", "chunks", "config"),
    [
        (lambda r: r.start_chunk == 0, 9, {}),
        (lambda r: r.start_chunk > 0, 4, {}),
        (lambda r: True, 4, {"refresh_every": 0}),
    ],
)
def test_no_longer_path_no_replayed_one_and_none_where_refresh_is_off_becomes_the_expert(
    course: Callable[..., Course], passes: Callable[[RolloutRequest], bool], chunks: int, config: dict[str, Any]
) -> None:
    run = course(**{"chunks": 9, "refresh_every": 2, **config})
    for _ in range(6):
        assert {expert_of(r) for r in run.go(passes, chunks=chunks) if r.start} == {"expert"}


def test_a_task_that_is_rarely_solved_gets_its_own_success_as_expert_and_one_that_mostly_is_does_not(
    course: Callable[..., Course],
) -> None:
    for often, known in ((3, True), (4, False)):
        run = course(refresh_every=1)
        requests = run.go(lambda r: None if r.task.id == "a" else True, tasks=TASKS)
        mine = [i for i, r in enumerate(requests) if r.task.id == "b"]
        run.history = tuple(
            replace(t, reward=replace(t.reward, value=float(i < often), passed=i < often))
            for i, t in enumerate(run.history)
            if t.reward is not None
        )
        assert len(run.history) == len(mine) == 8
        assert (max(r.start_chunk for r in run.plan(TASKS[1:])) > 0) is known


def test_experts_of_tasks_that_are_not_in_a_step_are_not_forgotten(course: Callable[..., Course]) -> None:
    """What became of a task's rollouts is known in the next step, which may be of other tasks."""
    run = course(chunks=4, refresh_every=1)
    run.go(lambda r: r.start_chunk == 0, chunks=9)
    run.go(lambda r: False, tasks=TASKS[1:])
    assert run.of("expert_refreshed") == []
    assert run.metrics()["experts"] == 1
    assert max(r.start_chunk for r in run.plan()) == 3


def test_on_a_shorter_expert_the_pointer_keeps_its_distance_from_the_end(course: Callable[..., Course]) -> None:
    run = course(chunks=3, start="rollback", refresh_every=4, window=8)
    assert [run.go(lambda r: True, chunks=2)[0].start_chunk for _ in range(4)] == [2, 1, 0, 0]
    assert [r.start_chunk for r in run.plan()] == [0] * 8  # two chunks, and three were mastered
    assert run.of("expert_refreshed")[0]["chunks"] == 2
