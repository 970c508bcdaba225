"""An expert whose replays are lost is dropped or cut, and one whose replays arrive is kept."""

from __future__ import annotations

from collections.abc import Callable

from ale.trajectory import Trajectory

from .conftest import TASKS, Build, Course, expert, expert_of


def test_an_expert_whose_replay_never_arrives_is_dropped_for_the_next_one(build: Build) -> None:
    paths = [expert(build, "gone", 4), expert(build, "next", 6)]
    run = Course(
        build,
        {"experts": {}, "start": "rollback", "window": 8, "group_size": 4},
        {"a": paths, "b": [expert(build, "x", 3, "b")]},
    )
    arrives = lambda r: None if expert_of(r) == "gone" else False  # noqa: E731
    used = [{expert_of(r) for r in run.go(arrives, tasks=TASKS) if r.task.id == "a" and r.start} for _ in range(4)]
    assert used == [{"gone"}, {"gone"}, {"next"}, {"next"}]
    assert [(e["expert"], e["task"], e["lost"]) for e in run.of("expert_dropped")] == [("gone", "a", 8)]
    assert [r.start_chunk for r in run.plan()] == [5] * 4


def test_the_last_expert_of_a_task_is_cut_to_what_can_be_replayed(course: Callable[..., Course]) -> None:
    run = course(chunks=12, start="rollback", group_size=8, window=8, refresh_every=0)
    beyond = 4  # from here on the agent's context is another one, say
    arrives = lambda r: None if r.start_chunk > beyond else False  # noqa: E731
    assert [max(r.start_chunk for r in run.go(arrives)) for _ in range(5)] == [11, 5, 2, 2, 2]
    assert [(e["farthest"], e["lost"]) for e in run.of("expert_cut")] == [(5, 8), (2, 8)]
    for _ in range(3):
        run.go(lambda r: True)
    assert run.plan()[0].start_chunk == 0, "from there it rolls back as ever"


def test_a_task_that_has_come_to_the_beginning_stays_there_when_its_cut_expert_is_renewed(
    course: Callable[..., Course],
) -> None:
    run = course(chunks=12, start="rollback", group_size=8, window=8, refresh_every=10)
    for _ in range(7):
        run.go(lambda r: None if r.start_chunk > 4 else True, chunks=5)
    assert run.plan()[0].start_chunk == 0
    for _ in range(12):
        run.go(lambda r: True, chunks=5)
    assert [e["chunks"] for e in run.of("expert_refreshed")] == [5], "longer than what was left of the one before"
    assert [r.start_chunk for r in run.plan()] == [0] * 8


def test_lost_replays_are_counted_once_however_often_a_step_is_planned(course: Callable[..., Course]) -> None:
    run = course(chunks=12, start="rollback", group_size=4, window=8)
    run.go(lambda r: None)
    for _ in range(3):
        assert run.plan()[0].start_chunk == 11
    run.go(lambda r: None)
    assert run.plan()[0].start_chunk == 5


def test_what_came_through_once_is_not_cut_off(course: Callable[..., Course]) -> None:
    run = course(chunks=10, start="parallel", anchors=8, group_size=8, window=4, refresh_every=0)
    arrives = lambda r: None if r.start_chunk > 5 else False  # noqa: E731
    farthest = [max(r.start_chunk for r in run.go(arrives)) for _ in range(6)]
    assert farthest[0] == 9
    assert farthest[-1] == 5
    assert run.of("expert_dropped") == []


def test_an_expert_of_which_nothing_can_be_replayed_leaves_the_beginning(course: Callable[..., Course]) -> None:
    run = course(chunks=5, group_size=8, window=4)
    for _ in range(5):
        run.go(lambda r: None if r.start_chunk else False)
    requests = run.plan()
    assert {(r.group, r.start_chunk) for r in requests} == {("6.0.a", 0)}
    assert run.metrics()["experts"] == 0


def test_a_replay_clears_the_losses_of_its_own_step_whatever_the_groups_are_called(build: Build) -> None:
    run = Course(
        build,
        {"experts": {}, "start": "parallel", "anchors": 4, "group_size": 16, "window": 4},
        {"a": [expert(build, "e", 13)]},
    )
    assert {r.start_chunk for r in run.plan()} == {0, 4, 8, 12}
    for _ in range(3):
        run.go(lambda r: None if r.start_chunk == 4 else False)
    assert run.of("expert_cut") == run.of("expert_dropped") == []


def test_a_replay_that_gets_through_now_and_then_is_kept(course: Callable[..., Course]) -> None:
    run = course(chunks=5, group_size=8, window=16, refresh_every=0)
    for _ in range(12):
        requests = run.go(lambda r: None if r.start_chunk and run.step % 3 else False)
        assert max(r.start_chunk for r in requests) == 4
    assert run.of("expert_dropped") == []


def test_what_is_lost_for_another_reason_says_nothing_of_the_expert(course: Callable[..., Course]) -> None:
    run = course(chunks=5, start="rollback", window=8, group_size=8)
    for _ in range(4):
        assert [r.start_chunk for r in run.go(lambda r: None)] == [4] * 8
        run.lost.clear()  # a sandbox went away, say
    assert run.of("expert_cut") == []
    run.go(lambda r: None)
    run.plan()
    assert [e["lost"] for e in run.of("expert_cut")] == [8], "though nothing at all came back"


def test_rollouts_that_are_still_under_way_are_not_lost(course: Callable[..., Course]) -> None:
    """Training lags three steps behind planning."""
    run = course(chunks=5, start="rollback", window=8, group_size=8, refresh_every=0)
    queue: list[tuple[Trajectory, ...]] = []
    path = []
    for _ in range(14):
        path.append(run.go(lambda r: True)[0].start_chunk)
        queue.append(run.history)
        run.history = queue.pop(0) if len(queue) > 3 else ()
    assert run.of("expert_dropped") == []
    assert path == sorted(path, reverse=True)
    assert path[-1] == 0 or path[-1] == 1
