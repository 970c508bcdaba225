"""The rules of `m_task` (Eq. 2): each tells from the trajectory whether a turn teaches nothing of the task."""

from __future__ import annotations

from collections.abc import Callable

from ale.trajectory import Chunk, Trajectory


def near_duplicate(trajectory: Trajectory, chunk: Chunk) -> bool:
    """The turn repeats the one before it, token for token."""
    if chunk.index == 0:
        return False
    return _tokens(trajectory, chunk) == _tokens(trajectory, trajectory.chunks[chunk.index - 1])


def side_context(trajectory: Trajectory, chunk: Chunk) -> bool:
    """The turn stands in another context than the one in which the episode ended: it was compressed away, or
    belongs to another sub-task."""
    return chunk.sequence != trajectory.chunks[-1].sequence


RULES: dict[str, Callable[[Trajectory, Chunk], bool]] = {
    "near_duplicate": near_duplicate,
    "side_context": side_context,
}


def _tokens(trajectory: Trajectory, chunk: Chunk) -> tuple[int, ...]:
    return trajectory.sequences[chunk.sequence].token_ids[chunk.start : chunk.end]
