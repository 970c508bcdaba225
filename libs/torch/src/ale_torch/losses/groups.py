"""Selects the rollouts to learn from, and sorts them into groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ale.trajectory import Trajectory


def select_trusted(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Select the trajectories whose reward can be trusted: they have one, no fault of the system ended the episode, and
    no rule rejected them."""
    return [t for t in trajectories if t.reward is not None and t.failure is None and t.rejected is None]


def reward_of(trajectory: Trajectory) -> float:
    """Return the reward of a scored trajectory."""
    assert trajectory.reward is not None
    return trajectory.reward.value


def any_passed(trajectories: Sequence[Trajectory]) -> dict[str, bool]:
    """Return for each group, by name, whether any of its rollouts passed."""
    found: dict[str, bool] = defaultdict(bool)
    for trajectory in trajectories:
        found[trajectory.group] |= trajectory.passed
    return dict(found)


def sampled_size(trajectory: Trajectory) -> tuple[int, int]:
    """Count the chunks and tokens that the policy sampled, without side calls."""
    lengths = [len(chunk) for chunk in trajectory.turns if chunk.sampled and len(chunk)]
    return len(lengths), sum(lengths)


def groups_of(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """Return the indices in `trajectories` of each group's members. Two trajectories may have the same id."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, trajectory in enumerate(trajectories):
        groups[trajectory.group].append(i)
    return list(groups.values())
