"""Returns of steps, against the sum written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loss_samples import rollout

from ale.messages import Message
from ale.trajectory import Score, Sequence, Trajectory
from ale_torch.losses.step_rewards import observed_before, states_of, step_returns


def played(rewards: list[float], sees: list[str], side: frozenset[int] = frozenset(), group: str = "g") -> Trajectory:
    """A rollout of one context: the k-th turn follows the message `sees[k]` and has the reward `rewards[k]`."""
    made = rollout("t", 1.0, [[1] * len(rewards)])
    messages = [m for text in sees for m in (Message("user", text), Message("assistant", "go"))]
    chunks = tuple(replace(c, turn=2 * k + 1, side=k in side) for k, c in enumerate(made.chunks))
    context = Sequence(made.sequences[0].token_ids, tuple(messages))
    return replace(
        made,
        sequences=(context,),
        chunks=chunks,
        group=group,
        reward=Score(sum(rewards), True, by_chunk=tuple(rewards)),
    )


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=6), st.floats(0.1, 1))
def test_a_step_returns_the_discounted_rewards_from_there_on(rewards: list[float], gamma: float) -> None:
    slow = [sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))]
    assert step_returns(played(rewards, ["x"] * len(rewards)), gamma) == pytest.approx(slow)


def test_side_calls_are_no_steps_and_without_rewards_there_are_no_returns() -> None:
    made = played([0.0, 1.0, 2.0], ["a", "b", "c"], side=frozenset({0}))
    assert step_returns(made, 0.5) == [2.0, 2.0]
    assert step_returns(rollout("t", 1.0), 0.5) == []
    assert step_returns(rollout("t", None), 0.5) == []


def test_chunks_that_saw_the_same_are_in_the_same_state() -> None:
    first, second = played([0, 1], ["start", "higher"]), played([0, 1, 0], ["start", "higher", "lower"])
    assert observed_before(second, second.chunks[1]) == ("higher",)
    assert states_of([first, second], [[0, 1]]) == [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(1, 2)]]
    assert len(states_of([first, second], [[0], [1]])) == 5, "each group has states of its own"
