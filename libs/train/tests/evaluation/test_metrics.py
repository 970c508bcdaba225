"""The figures of an evaluation, from its episodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.sample_trajectory import build_trajectory

from ale.trajectory import Score, Trajectory
from ale_train.evaluation.describe import describe
from ale_train.evaluation.metrics import measure, sum_up, tries


def episode(task: str, value: float, *tags: str, **parts: float) -> Trajectory:
    """An episode of a task; it passed if its reward is above a half."""
    return replace(build_trajectory(task), task_id=task, tags=tags, reward=Score(value, value > 0.5, parts=parts))


DONE = [
    *(episode("a", value, "easy", form=1.0) for value in (1.0, 1.0, 0.6, 0.2)),
    *(episode("b", value, "hard", form=0.5) for value in (0.1, 0.1, 0.1, 0.9)),
    *(episode("c", value, "hard") for value in (0.0, 0.0, 0.0, 0.0)),
]


def test_success_reward_and_tries_are_means_over_tasks() -> None:
    found = measure(DONE, 4)
    assert (found["episodes"], found["tasks"]) == (12, 3)
    assert found["success"] == found["pass@1"] == found["avg@4"] == pytest.approx(4 / 12)
    assert found["reward"] == pytest.approx(4.0 / 12)
    assert found["pass@4"] == pytest.approx(2 / 3)
    assert found["pass@2"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert found["pass^2"] == pytest.approx((0.5 + 0 + 0) / 3)
    assert found["success/hard"] == pytest.approx(1 / 8)
    assert found["reward/easy"] == pytest.approx(0.7)
    assert found["success_low/hard"] < found["success/hard"] < found["success_high/hard"]
    assert "success_low/easy" not in found, "one task has no interval"
    assert found["reward/hard"] == pytest.approx(1.2 / 8)
    assert found["reward_low/hard"] < found["reward/hard"] < found["reward_high/hard"]
    assert found["pass@2/hard"] == pytest.approx(0.5 / 2)
    assert found["pass^2/easy"] == pytest.approx(0.5)
    assert found["avg@4/hard"] == found["success/hard"]
    assert found["pass@4_low/hard"] < found["pass@4/hard"] < found["pass@4_high/hard"]
    assert found["avg@4_low"] < found["avg@4"] < found["avg@4_high"]
    assert found["parts/form"] == pytest.approx(0.75)
    assert {"turns", "branches", "changed_echoes", "chunks"} <= set(found)


def test_a_run_that_a_fault_took_is_no_failure() -> None:
    found = measure([t for t in DONE if t.reward and t.reward.value != 0.9], 4)
    assert found["pass@4"] == pytest.approx(1 / 2), "the task with three runs is left out"
    assert found["pass@2"] == pytest.approx(1 / 3)


def test_branches_and_echoes_are_counted() -> None:
    t = episode("a", 1.0)
    found = measure([t, replace(t, sequences=t.sequences * 3, changed_echoes=4)], 1)
    assert (found["branches"], found["changed_echoes"]) == (1.0, 2.0)


def test_the_ks_are_powers_of_two_and_the_number_of_runs() -> None:
    assert [tries(n) for n in (1, 2, 3, 8, 10)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


def test_sets_count_the_same_in_their_sum_and_a_terminal_shows_them() -> None:
    sets = {"easy": measure(DONE[:4], 4), "hard": measure(DONE[4:], 4) | {"resampled": 3.0, "unfilled": 1.0}}
    together = sum_up(sets)
    assert together == {
        "success": (0.75 + 0.125) / 2,
        "reward": pytest.approx((0.7 + 0.15) / 2),
        "episodes": 12,
        "tasks": 3,
    }
    lines = list(describe("after_rl", {**together, "sets": sets}))
    assert lines[0] == "after rl: 0.438, mean reward 0.425, 12 episodes of 3 tasks"
    assert lines[1] == "  easy: 0.750, mean reward 0.700, 4 episodes of 1 tasks"
    assert any(line.startswith("    pass@1 0.750, pass@2 1.000, pass^2 0.500, pass@4 1.000") for line in lines)
    assert list(describe("", measure(DONE, 4)))[2] == "    by tag: easy 0.750, hard 0.125 [0.001, 0.968]"
    assert "3 episodes made again after faults, 1 given up" in lines[-1]
