"""What is measured of the rollouts of a step."""

from __future__ import annotations

from collections.abc import Callable

from ale.trajectory import Score, Trajectory
from ale_train.rl.rollout_metrics import is_even


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
