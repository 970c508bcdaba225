"""From rewards to signals, the `R` that Eq. 7 discounts, and on to the returns of chunks.

The paper's reward is 0 or 1, and a 0 would leave the failed trajectories without gradient while Eq. 9 has a term for
them. So `R` is made from the reward in one of three ways. T+ are the trajectories whose signal is above 0; for
rewards of 0 and 1 these are the ones that passed, whichever way is taken. Where a failure may have a reward above 0 (a
share of the tests), `signed` goes by the pass, as pointers and imitation do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ale.trajectory import Trajectory
from ale_policy_loss.groups import groups_of, reward_of, trusted

ReturnSignal = Literal["signed", "raw", "group_centered"]


@dataclass(frozen=True, slots=True)
class Signals:
    """Trajectories with their signals, in the order they came, and how many groups had no spread."""

    trajectories: list[Trajectory]
    values: list[float]
    dropped_groups: int = 0


def signals(kind: ReturnSignal, trajectories: Sequence[Trajectory], negative_signal: float) -> Signals:
    """The signals of the trajectories that have a reward to be trusted; the others are left out."""
    kept = trusted(trajectories)
    if kind == "group_centered":
        return group_centered(kept)
    if kind == "signed":
        return Signals(kept, [1.0 if t.passed else negative_signal for t in kept])
    return Signals(kept, [reward_of(t) for t in kept])


def group_centered(trajectories: Sequence[Trajectory]) -> Signals:
    """Reward minus the mean of its group; a group whose rewards are all alike teaches nothing and is dropped."""
    centered: dict[int, float] = {}
    dropped = 0
    for members in groups_of(trajectories):
        rewards = [reward_of(trajectories[i]) for i in members]
        if min(rewards) == max(rewards):
            dropped += 1
            continue
        mean = sum(rewards) / len(rewards)
        centered |= {i: r - mean for i, r in zip(members, rewards, strict=True)}
    order = sorted(centered)
    return Signals([trajectories[i] for i in order], [centered[i] for i in order], dropped)


def chunk_return(signal: float, gamma: float, position: int, count: int) -> float:
    """Eq. 7: `G_k = gamma^(K - k) R` for the chunk at `position` (from 0) of `count`; the last one gets `R`."""
    return signal * float(gamma ** (count - 1 - position))
