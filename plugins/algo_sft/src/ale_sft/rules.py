"""The rules of `m_task` (Eq. 2): each tells from the trajectory whether a turn teaches nothing of the task."""

from __future__ import annotations

from collections.abc import Callable

from ale.trajectory import Chunk, Trajectory

Rule = Callable[[Trajectory, int], bool]
"""(trajectory, position of the turn among its chunks) -> whether the turn is masked."""


def near_duplicate(trajectory: Trajectory, position: int) -> bool:
    """The turn says what the one directly before it said, token for token: a loop, not progress."""
    if position == 0:
        return False
    now, before = trajectory.chunks[position], trajectory.chunks[position - 1]
    return len(now) > 0 and _tokens(trajectory, now) == _tokens(trajectory, before)


def side_context(trajectory: Trajectory, position: int) -> bool:
    """The turn stands in another context than the one in which the episode ended: it was compressed away, or
    belongs to another sub-task."""
    return trajectory.chunks[position].sequence != trajectory.chunks[-1].sequence


def truncated(trajectory: Trajectory, position: int) -> bool:
    """The turn ran into the token limit: it ends in the middle of a thought."""
    return trajectory.chunks[position].finish_reason == "length"


RULES: dict[str, Rule] = {"near_duplicate": near_duplicate, "side_context": side_context, "truncated": truncated}


def _tokens(trajectory: Trajectory, chunk: Chunk) -> tuple[int, ...]:
    return trajectory.sequences[chunk.sequence].token_ids[chunk.start : chunk.end]
