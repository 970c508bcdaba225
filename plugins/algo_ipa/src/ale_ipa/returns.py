"""Turns rewards into signals (`R`, which Eq. 7 discounts) and signals into the returns of chunks.

The paper's reward is 0 or 1. With a signal of 0, failed trajectories would have no gradient, although Eq. 9 has a term
for them. So `R` is made from the reward in one of three ways. T+ are the trajectories whose signal is above 0; for
rewards of 0 and 1 these are the trajectories that passed, in all three ways. If a failure can have a reward above 0 (a
share of the tests), `signed` looks at whether the trajectory passed, not at its reward, and so do the pointers of
rollback and the imitation of Eq. 10.

Where the score has rewards of steps (`Score.by_chunk`), a chunk's return also has theirs: `G_k + step_weight S_k` with
`S_k`, the discounted sum of the rewards from this step on. With `steps` it has theirs alone. T+ then goes by chunk: a
chunk belongs to it if its return is above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ale.trajectory import Trajectory
from ale_torch.losses.groups import groups_of, reward_of, select_trusted
from ale_torch.losses.step_rewards import step_returns

ReturnSignal = Literal["signed", "raw", "group_centered", "steps"]


@dataclass(frozen=True, slots=True)
class Signals:
    """Holds trajectories with their signals, in the given order. `even` holds the positions of the trajectories in even
    groups (their signal is 0)."""

    trajectories: list[Trajectory]
    values: list[float]
    even: frozenset[int] = frozenset()


def signals(kind: ReturnSignal, trajectories: Sequence[Trajectory], negative_signal: float) -> Signals:
    """Return the signals of the trajectories that have a trusted reward; the others are left out."""
    kept = select_trusted(trajectories)
    if kind == "group_centered":
        return group_centered(kept)
    if kind == "steps":
        return Signals(kept, [0.0] * len(kept))
    if kind == "signed":
        return Signals(kept, [1.0 if t.passed else negative_signal for t in kept])
    return Signals(kept, [reward_of(t) for t in kept])


def group_centered(trajectories: Sequence[Trajectory]) -> Signals:
    """Subtract from each reward the mean of its group; in an even group, whose rewards are all equal, all are 0."""
    centered = [0.0] * len(trajectories)
    even: set[int] = set()
    for members in groups_of(trajectories):
        rewards = [reward_of(trajectories[i]) for i in members]
        if min(rewards) == max(rewards):
            even |= set(members)
            continue
        mean = sum(rewards) / len(rewards)
        for i, reward in zip(members, rewards, strict=True):
            centered[i] = reward - mean
    return Signals(list(trajectories), centered, frozenset(even))


def step_signals(kind: ReturnSignal, made: Signals, gamma: float) -> list[list[float]]:
    """Return `S_k` for each turn of each trajectory; an empty list for one without rewards of steps. `group_centered`
    subtracts the mean over the turns of the group."""
    returns = [step_returns(t, gamma) for t in made.trajectories]
    if kind == "group_centered":
        for members in groups_of(made.trajectories):
            every = [value for i in members for value in returns[i]]
            mean = sum(every) / (len(every) or 1)
            for i in members:
                returns[i] = [value - mean for value in returns[i]]
    return returns


def chunk_return(signal: float, gamma: float, position: int, count: int) -> float:
    """Return Eq. 7: `G_k = gamma^(K - k) R` for the chunk at `position` (from 0) of `count`; the last one gets `R`."""
    return signal * float(gamma ** (count - 1 - position))
