"""Turns the rewards of single steps (`Score.by_chunk`) into returns of chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ale.trajectory import Chunk, Trajectory


def step_returns(trajectory: Trajectory, gamma: float) -> list[float]:
    """Return `S_k = sum over j >= k of gamma^(j - k) r_j` for each of `Trajectory.turns`, where `r_j` is the reward of
    turn j. It is an empty list if the score has no rewards of steps."""
    if trajectory.reward is None or not trajectory.reward.by_chunk:
        return []
    returns: list[float] = []
    following = 0.0
    for chunk in reversed(trajectory.turns):
        following = trajectory.reward.by_chunk[chunk.index] + gamma * following
        returns.append(following)
    return returns[::-1]


def observed_before(trajectory: Trajectory, chunk: Chunk) -> tuple[str, ...]:
    """Return what the model was shown since its last reply in this context: the state in which the chunk acted, as far
    as it can be seen."""
    seen: list[str] = []
    for message in reversed(trajectory.sequences[chunk.sequence].messages[: chunk.turn]):
        if message.role == "assistant":
            break
        seen.append(message.content)
    return tuple(reversed(seen))


def states_of(trajectories: Sequence[Trajectory], groups: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    """Sort the turns of each group by the state in which they acted: lists of (trajectory number, position of the
    turn). These are the step-level groups of GiGPO (Feng et al., 2025, arXiv:2505.10978, Eq. 6)."""
    found: list[list[tuple[int, int]]] = []
    for members in groups:
        by_state: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        for i in members:
            for position, chunk in enumerate(trajectories[i].turns):
                by_state[observed_before(trajectories[i], chunk)].append((i, position))
        found.extend(by_state.values())
    return found
