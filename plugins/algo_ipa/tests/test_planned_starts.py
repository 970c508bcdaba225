"""Where the rollouts of a step start: at anchors along an expert's path, or at a pointer that rolls back along it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ale.specs.algorithm import RolloutRequest

from .conftest import TASKS, Build, Course, expert, expert_of


def test_a_run_without_experts_starts_at_the_beginning_as_ever(course: Callable[..., Course]) -> None:
    run = course(chunks=0)
    for _ in range(12):
        requests = run.go(lambda r: True)
        assert {r.start for r in requests} == {None}
        assert {r.group for r in requests} == {f"{run.step}.0.a"}
    assert run.metrics().keys() & {"experts", "start_chunk_pointer", "il_tokens"} == set()


def test_rollouts_are_spread_over_the_anchors_and_grouped_by_start(course: Callable[..., Course]) -> None:
    run = course(chunks=10, group_size=8)
    requests = run.go(lambda r: True, tasks=TASKS)
    assert Counter(r.start_chunk for r in requests if r.task.id == "a") == {0: 2, 3: 2, 6: 2, 9: 2}
    assert {r.group for r in requests if r.task.id == "a"} == {f"1.0.a.k{k}" for k in (1, 4, 7, 10)}
    assert all((r.start is None) == (r.start_chunk == 0) for r in requests)
    assert {(r.group, r.start_chunk) for r in requests if r.task.id == "b"} == {("1.1.b", 0)}
    assert len({r.seed for r in requests}) == 16
    assert run.metrics()["experts"] == 1


@pytest.mark.parametrize("config", [{}, {"anchor_choice": "random"}, {"start": "rollback", "window": 4}])
def test_a_plan_repeats_itself_and_looks_at_rollouts_once(
    course: Callable[..., Course], config: dict[str, Any]
) -> None:
    run = course(chunks=9, refresh_every=2, **config)
    for step in range(6):
        first = run.plan()
        assert run.plan() == first
        run.go(lambda r: r.start_chunk > 3 or r.seed % 3 == 0, chunks=9 - step)
        events = len(run.events)
        second = run.plan()
        after = len(run.events)
        assert run.plan() == second
        assert len(run.events) == after >= events


def test_random_anchors_change_from_step_to_step(course: Callable[..., Course]) -> None:
    run = course(chunks=30, anchor_choice="random", refresh_every=0)
    assert len({tuple(r.start_chunk for r in run.go(lambda r: False)) for _ in range(8)}) > 4


def test_with_few_rollouts_there_are_fewer_anchors(course: Callable[..., Course]) -> None:
    assert {r.start_chunk for r in course(chunks=10, group_size=3).plan()} == {0, 4, 9}
    centered = course(chunks=10, group_size=4, return_signal="group_centered")
    assert Counter(r.start_chunk for r in centered.plan()) == {0: 2, 9: 2}


def test_side_calls_are_no_chunks_to_start_from(build: Build) -> None:
    path = expert(build, "expert", 5)
    path = replace(path, chunks=tuple(replace(c, side=c.index in (0, 3)) for c in path.chunks))
    run = Course(build, {"experts": {}, "anchors": 8}, {"a": [path]})
    assert {r.start_chunk for r in run.plan()} == {0, 1, 2}


def test_an_expert_of_one_chunk_gives_the_beginning_alone(course: Callable[..., Course]) -> None:
    for config in ({}, {"start": "rollback"}):
        requests = course(chunks=1, **config).plan()
        assert {(r.group, r.start) for r in requests} == {("1.0.a.k1", None)}


def test_of_several_experts_the_shortest_is_used(build: Build) -> None:
    paths = [expert(build, "long", 9), expert(build, "short", 4), expert(build, "other", 4), expert(build, "none", 0)]
    run = Course(build, {"experts": {}, "start": "rollback"}, {"a": paths})
    assert {(r.start_chunk, expert_of(r)) for r in run.plan()} == {(3, "short")}


def test_the_pointer_rolls_back_to_the_beginning_and_finds_the_crucial_chunk(course: Callable[..., Course]) -> None:
    """The policy fails where it has to make chunk 3 itself, until it has tried that for five steps."""
    run = course(chunks=5, start="rollback", window=8, group_size=8, refresh_every=0)
    tries = 0

    def passes(request: RolloutRequest) -> bool:
        nonlocal tries
        tries += request.start_chunk == 2
        return request.start_chunk != 2 or tries > 40

    path = [run.go(passes)[0].start_chunk for _ in range(12)]
    assert path == [4, 3, 2, 2, 2, 2, 2, 2, 1, 0, 0, 0]
    assert [(e["chunk"], e["before"], e["after"]) for e in run.of("crucial_fork")] == [(3, 1.0, 0.0)]
    assert [e["chunk"] for e in run.of("rollback")] == [4, 3, 2, 1]
    assert run.metrics()["start_chunk_pointer"] == 0


def test_a_window_reaches_over_several_steps(course: Callable[..., Course]) -> None:
    run = course(chunks=5, start="rollback", window=8, group_size=3)
    assert [run.go(lambda r: True)[0].start_chunk for _ in range(7)] == [4, 4, 4, 3, 3, 3, 2]


def test_rollouts_that_were_planned_before_the_pointer_moved_do_not_count(course: Callable[..., Course]) -> None:
    run = course(chunks=5, start="rollback", window=8)
    run.go(lambda r: True)
    late = run.history
    run.go(lambda r: False)
    run.history = tuple(replace(t, id=f"late {t.id}") for t in late)
    run.go(lambda r: None)
    run.lost.clear()  # under way, not lost
    assert [r.start_chunk for r in run.plan()] == [3] * 8
    assert len(run.of("rollback")) == 1
