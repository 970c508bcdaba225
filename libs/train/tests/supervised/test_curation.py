"""Which demonstrations are kept."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ale.trajectory import Chunk, ChunkError, Score, Trajectory
from ale_train.config.supervised import Curation
from ale_train.supervised.curation import curate


def made(name: str, *, errors: int = 0, turns: int = 2, longest: int = 2, **changes: Any) -> Trajectory:
    """A demonstration of the task `count` that passed, whose first turns failed."""
    error = ChunkError("execution_failed", "no")
    chunks = tuple(
        Chunk(
            i, 0, i, i + (longest if i == 0 else 1), (), (), "stop", sampled=False, error=error if i < errors else None
        )
        for i in range(turns)
    )
    given = {
        "task_id": "count-1",
        "tags": ("count",),
        "chunks": chunks,
        "ended_by": "finish",
        "reward": Score(1.0, True),
    }
    return Trajectory(
        name,
        split="train",
        stage="demonstrations",
        step=0,
        group=name,
        seed=0,
        policy_version=0,
        sequences=(),
        **{**given, **changes},
    )


def kept(trajectories: list[Trajectory], **keep: Any) -> tuple[list[str], dict[str, int]]:
    out, left_out = curate(trajectories, Curation(**keep))
    return [t.id for t in out], dict(left_out)


def test_each_key_leaves_out_what_it_says() -> None:
    cut = Chunk(1, 0, 1, 2, (), (), "length", sampled=False)
    all_of_them = [
        made("good"),
        made("failed", reward=Score(0.0, False)),
        made("unscored", reward=None),
        made("graded", reward=Score(0.4, False)),
        made("loop", errors=3, turns=6),
        made("wordy", longest=50),
        made("short", turns=1),
        made("budget", ended_by="budget"),
        made("slow", ended_by="agent_timeout"),
        made("turns", ended_by="max_turns"),
        made("cut", chunks=(cut,) * 2),
        made("other", tags=("find", "hard")),
    ]
    names = [t.id for t in all_of_them]
    assert kept(all_of_them) == (names, {})
    for keep, without in (
        ({"passed_only": True}, {"failed", "unscored", "graded"}),
        ({"min_reward": 0.4}, {"failed", "unscored"}),
        ({"max_error_turns": 2}, {"loop"}),
        ({"max_error_turns": 3}, set()),
        ({"max_turn_tokens": 49}, {"wordy"}),
        ({"min_turns": 2}, {"short"}),
        ({"complete_only": True}, {"budget", "slow", "turns", "cut"}),
        ({"tags": ["count"]}, {"other"}),
        ({"tags": ["!hard"]}, {"other"}),
    ):
        assert kept(all_of_them, **keep) == (
            [name for name in names if name not in without],
            {next(iter(keep)): len(without)} if without else {},
        ), keep


def test_side_calls_are_no_turns_of_a_demonstration() -> None:
    side = Chunk(1, 0, 2, 60, (), (), "length", sampled=False, side=True, error=ChunkError("truncated", "x"))
    t = made("t", turns=1)
    t = made("t", chunks=(*t.chunks, side))
    assert kept([t], max_turn_tokens=9, max_error_turns=0, complete_only=True) == (["t"], {})
    assert kept([t], min_turns=2) == ([], {"min_turns": 1})


def test_of_each_task_the_best_are_kept_in_their_order() -> None:
    all_of_them = [
        made("a-failed", task_id="a", reward=Score(0.0, False)),
        made("a-long", task_id="a", turns=5),
        made("a-loop", task_id="a", errors=1),
        made("b-failed", task_id="b", reward=Score(0.0, False)),
        made("a-short", task_id="a"),
        made("a-short-too", task_id="a"),
        made("b-unscored", task_id="b", reward=None),
    ]
    assert kept(all_of_them, per_task=1) == (["b-failed", "a-short"], {"per_task": 5})
    assert kept(all_of_them, per_task=3) == (
        ["a-long", "b-failed", "a-short", "a-short-too", "b-unscored"],
        {"per_task": 2},
    )


@settings(max_examples=60, deadline=None)
@given(
    rewards=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1), st.integers(0, 3)), max_size=12),
    count=st.integers(1, 4),
)
def test_what_is_left_out_is_never_better_than_what_is_kept(rewards: list[tuple[str, float, int]], count: int) -> None:
    found = [
        made(str(i), task_id=task, reward=Score(value, value > 0.5), errors=errors, turns=4)
        for i, (task, value, errors) in enumerate(rewards)
    ]
    out, left_out = curate(found, Curation(per_task=count))
    assert len(out) + left_out["per_task"] == len(found)
    assert [t.id for t in out] == [t.id for t in found if t in out], "in their order"
    for task in "abc":
        inside = [t for t in out if t.task_id == task]
        outside = [t for t in found if t.task_id == task and t not in out]
        assert len(inside) == min(count, len(inside) + len(outside))
        worst = min((t.reward.value for t in inside if t.reward), default=1.0)
        assert all(t.reward is not None and t.reward.value <= worst for t in outside)


# -- reading beside the loop -------------------------------------------------------------------------------------------
