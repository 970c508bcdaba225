"""Episodes for the tests: a task, and what an agent said. The fixtures are the functions that make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ale.messages import Message
from ale.task import Task
from ale.trajectory import Chunk, Observation, Sequence, Trajectory


def _make_task(**metadata: Any) -> Task:
    """A question with these columns."""
    return Task(id="q1", instruction="What is 6 * 7?", metadata=metadata)


def _episode(*replies: str, side_after: int | None = None, observations: tuple[Observation, ...] = ()) -> Trajectory:
    """A conversation with these replies; with `side_after`, a side call (a title) follows that reply."""
    messages = [Message("system", "Be exact."), Message("user", "What is 6 * 7?")]
    chunks: list[Chunk] = []
    title = Sequence((7, 8), (Message("user", "A title?"), Message("assistant", "Numbers")))
    for number, reply in enumerate(replies):
        if number:
            messages.append(Message("user", "Try again."))
        chunks.append(Chunk(len(chunks), 0, 0, 1, (-0.1,), (0,), "stop", turn=len(messages)))
        messages.append(Message("assistant", reply))
        if side_after == number:
            chunks.append(Chunk(len(chunks), 1, 1, 2, (-0.1,), (0,), "stop", side=True, turn=1))
    sequences = (Sequence(tuple(range(len(messages))), tuple(messages)), title)
    return Trajectory("e", "q1", "train", "rl", 1, "g", 0, 0, sequences, tuple(chunks), observations)


@pytest.fixture
def make_task() -> Callable[..., Task]:
    """Return the function that makes a task."""
    return _make_task


@pytest.fixture
def episode() -> Callable[..., Trajectory]:
    """Return the function that makes an episode."""
    return _episode
