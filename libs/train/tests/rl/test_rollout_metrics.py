"""What is measured of the rollouts of a step."""

from __future__ import annotations

from collections.abc import Callable

from ale.trajectory import Score, Trajectory
from ale_train.rl.rollout_metrics import is_even, rollout_metrics


def test_groups_are_even_if_the_rewards_of_each_are_alike() -> None:
    def rollout(group: str, value: float, *steps: float) -> Trajectory:
        score = Score(value, value > 0, by_chunk=steps)
        return Trajectory("x", "t", "train", "rl", 1, group, 0, 0, (), (), reward=score)

    even: Callable[..., bool] = lambda *rollouts: is_even(rollouts)  # noqa: E731
    assert even(rollout("a", 1), rollout("a", 1))
    assert not even(rollout("a", 1), rollout("a", 0))
    assert even(rollout("a", 1), rollout("b", 0)), "two groups of one task, each even"
    assert not even(rollout("a", 1, 0.0, 1.0), rollout("a", 1, 1.0, 0.0)), "rewards of steps count"
    assert not even()


def test_rewards_have_a_spread_and_their_parts_a_mean() -> None:
    def rollout(value: float, **parts: float) -> Trajectory:
        return Trajectory("x", "t", "train", "rl", 1, "g", 0, 0, (), (), reward=Score(value, True, parts=parts))

    found = rollout_metrics([rollout(0.0, format=1.0), rollout(2.0, format=0.5, answer=3.0)], 0)
    assert found["reward_std"] == 1.0
    assert found["parts/format"] == 0.75
    assert found["parts/answer"] == 3.0
    assert (found["cut_replies"], found["chunk_tokens_min"], found["chunk_tokens_max"]) == (0.0, 0.0, 0.0)
