"""Which rollouts may be learnt from, and which of them belong together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ale.trajectory import Trajectory


def trusted(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Those whose reward can be trusted: scored, not failed, not rejected."""
    return [t for t in trajectories if t.reward is not None and t.failure is None and t.rejected is None]


def reward_of(trajectory: Trajectory) -> float:
    """The reward of a trajectory that has one."""
    assert trajectory.reward is not None
    return trajectory.reward.value


def any_passed(trajectories: Sequence[Trajectory]) -> dict[str, bool]:
    """Whether anything in a group passed, by its name."""
    found: dict[str, bool] = defaultdict(bool)
    for trajectory in trajectories:
        found[trajectory.group] |= trajectory.passed
    return dict(found)


def groups_of(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """The members of each group, by their places in `trajectories`: two rollouts that share an id are still two."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, trajectory in enumerate(trajectories):
        groups[trajectory.group].append(i)
    return list(groups.values())
