"""Where IPA's rollouts start from step to step: experts, pointers, refresh, lost replays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ale.specs.algorithm import RolloutHistory, RolloutRequest
from ale.specs.driver import DriverContext
from ale.task import Task, TaskTests
from ale.trajectory import Trajectory
from ale_ipa import IPA
from ale_replay import REPLAY_LOST, ExpertReplay
from ale_testing.recording_channel import RecordingChannel

Build = Callable[..., Trajectory]
TASKS = [Task(id=name, instruction="Do it.", tests=TaskTests(command="true")) for name in ("a", "b")]


@dataclass
class Course:
    """A run without a policy: each step's rollouts end as `passes(request)` says, or their replays are lost where it
    says None."""

    build: Build
    config: dict[str, Any]
    experts: dict[str, Sequence[Trajectory]]
    step: int = 0
    history: tuple[Trajectory, ...] = ()
    lost: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        channel = RecordingChannel()
        self.events = channel.events
        context = DriverContext(channel=channel)
        self.ipa = IPA(IPA.Config(**self.config), context)
        self.demonstrations = [t for known in self.experts.values() for t in known]

    def plan(self, tasks: Sequence[Task] = TASKS[:1]) -> list[RolloutRequest]:
        """The next step's requests."""
        lost = {group: {REPLAY_LOST: n} for group, n in self.lost.items()}
        history = RolloutHistory(self.step + 1, 7, self.history, lost, demonstrations=self.demonstrations)
        return self.ipa.plan(tasks, history)

    def go(
        self,
        passes: Callable[[RolloutRequest], bool | None],
        chunks: int = 3,
        tasks: Sequence[Task] = TASKS[:1],
    ) -> list[RolloutRequest]:
        """Make the next step, with rollouts of so many chunks."""
        requests = self.plan(tasks)
        self.step += 1
        made = []
        self.lost.clear()
        for i, request in enumerate(requests):
            if (passed := passes(request)) is None:
                self.lost[request.group] += 1
                continue
            t = self.build(f"{self.step}.{i}", float(passed), [1] * chunks, group=request.group)
            made.append(replace(t, task_id=request.task.id, step=self.step, start_chunk=request.start_chunk))
        self.history = tuple(made)
        return requests

    def metrics(self) -> dict[str, float]:
        """What a batch of the newest rollouts tells."""
        batch = self.ipa.batch(self.history)
        assert batch is not None
        return dict(batch.metrics)

    def resumed(self) -> Course:
        """The same run in another process: its algorithm is a new one that has read the state of this one's."""
        state = json.loads(json.dumps(self.ipa.state()))
        other = Course(self.build, self.config, self.experts, self.step, self.history, Counter(self.lost))
        other.ipa.restore(state)
        return other

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [data for k, data in self.events if k == kind]


def expert_of(request: RolloutRequest) -> str:
    """The id of the expert that is replayed; nothing where none is."""
    assert request.start is None or isinstance(request.start, ExpertReplay)
    return request.start.expert.id if request.start else ""


@pytest.fixture
def course(build: Build) -> Callable[..., Course]:
    """Makes a run in which task `a` has an expert of some chunks (0: none)."""

    def make(chunks: int = 5, **config: Any) -> Course:
        if not chunks:
            return Course(build, config, {})
        return Course(build, {"experts": {}, **config}, {"a": [expert(build, "expert", chunks)]})

    return make


def expert(build: Build, name: str, chunks: int, task: str = "a") -> Trajectory:
    """A success of so many chunks that the policy did not sample."""
    made = build(name, 1.0, [1] * chunks, task_id=task, group="", step=0)
    return replace(made, chunks=tuple(replace(c, sampled=False, logprobs=(), versions=()) for c in made.chunks))


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


def test_a_start_that_some_group_of_the_step_succeeded_from_is_mastered(build: Build) -> None:
    """One task, several groups a step, as a run over few tasks has them."""
    run = Course(build, {"experts": {}, "start": "parallel", "group_size": 3}, {"a": [expert(build, "path", 3)]})
    twice = [TASKS[0], TASKS[0]]
    run.go(lambda r: r.start_chunk == 2 and r.group.split(".")[1] == "0", tasks=twice)
    requests = run.plan(twice)
    failed = [
        replace(run.build(f"f{i}", 0.0, [1], group=r.group), task_id="a", step=2, start_chunk=r.start_chunk)
        for i, r in enumerate(requests)
        if r.start_chunk == 0
    ]
    batch = run.ipa.batch(failed)
    assert batch is not None
    assert int((~batch.chunks.sampled).sum()) == 2 * 2, "each group imitates up to the start that is mastered"


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


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"start": "beginning", "lambda_il": 0.1}, "lambda_il does nothing with start 'beginning'"),
        ({"start": "beginning", "refresh_every": 3}, "refresh_every does nothing"),
        ({"start": "rollback", "anchors": 3}, "set start to 'parallel'"),
        ({"anchor_choice": "random", "start": "rollback"}, "anchor_choice does nothing"),
        ({"advance_at": 0.4}, "set start to 'rollback'"),
        ({"start": "parallel", "fork_drop": 0.4}, "fork_drop does nothing"),
        ({"lambda_il": 0, "il_when": "always"}, "il_when does nothing with lambda_il 0"),
        ({"lambda_il": 0, "lambda_rl": 0.5}, "lambda_rl does nothing"),
        ({"experts": {}, "anchors": 9}, "raise group_size to 9"),
        ({"experts": {}, "anchors": 5, "return_signal": "group_centered"}, "raise group_size to 10"),
        ({"experts": {}, "start": "beginning"}, "experts does nothing with start 'beginning'"),
        ({"experts": {}, "group_size": 1}, "group_size of at least 2"),
        ({"experts": {}, "group_size": 3, "return_signal": "group_centered"}, "group_size of at least 4"),
        ({"start": "parallel"}, "start is for rollouts that start from experts, and there are none: give experts"),
        ({"start": "rollback", "group_size": 1}, "start is for rollouts that start from experts"),
        ({"lambda_il": 0.2}, "lambda_il is for rollouts that start from experts"),
        ({"experts": None, "refresh_every": 5}, "refresh_every is for rollouts that start from experts"),
        ({"experts": {"demonstrations": False}}, "experts has no source"),
        ({"experts": {"replay_ignore": ["("]}}, "is no regular expression"),
        ({"anchors": 1}, "greater than or equal to 2"),
        ({"lambda_rl": 0}, "greater than 0"),
    ],
)
def test_settings_of_starts_that_would_do_nothing_are_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        IPA.Config(**config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"group_size": 1},
        {"start": "beginning"},
        {"experts": {}},
        {"experts": None},
        {"experts": {"demonstrate": 1}},
    ],
)
def test_settings_that_ask_for_what_there_is_are_taken(config: dict[str, Any]) -> None:
    assert IPA.Config(**config)


def test_imitation_reaches_to_the_next_start_that_succeeds_so_that_no_crucial_chunk_lies_between_anchors(
    course: Callable[..., Course],
) -> None:
    run = course(chunks=10)

    def reach() -> dict[int, int]:
        return {p.start: p.imitated for p in run.ipa._curriculum.placed.values() if p.step == run.step}

    run.go(lambda r: r.start_chunk == 9)
    assert reach() == {0: 1, 3: 4, 6: 7, 9: 10}, "nothing is known yet"
    run.go(lambda r: r.start_chunk >= 6)
    assert reach() == {0: 9, 3: 9, 6: 9, 9: 10}
    run.go(lambda r: r.start_chunk == 9)
    assert reach() == {0: 6, 3: 6, 6: 9, 9: 10}
    run.go(lambda r: False)
    assert reach() == {0: 9, 3: 9, 6: 9, 9: 10}, "what succeeded once and fails now is no success"


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
