"""Advantages of steps: against the equations, written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from pydantic import ValidationError

from ale.messages import Message
from ale.trajectory import Score, Trajectory
from ale_pg import PolicyGradient

Make = Callable[..., PolicyGradient]
Build = Callable[..., Trajectory]


def stepped(make_one: Build, name: str, rewards: list[float], sees: list[str]) -> Trajectory:
    """A rollout of one context whose k-th turn saw `sees[k]` and has the reward `rewards[k]`."""
    made = make_one(name, sum(rewards), rows=[[1] * len(rewards)])
    messages = [m for text in sees for m in (Message("user", text), Message("assistant", "go"))]
    context = replace(made.sequences[0], messages=tuple(messages))
    chunks = tuple(replace(c, turn=2 * k + 1) for k, c in enumerate(made.chunks))
    score = Score(sum(rewards), sum(rewards) > 0, by_chunk=tuple(rewards))
    return replace(made, sequences=(context,), chunks=chunks, reward=score)


def test_gigpo_adds_to_the_episodes_advantage_that_of_the_step_among_equal_states(make: Make, build: Build) -> None:
    rewards = [[0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0]]
    sees = [["start", "low"], ["start", "high", "low"], ["start", "low"]]
    done = [stepped(build, f"t{i}", r, s) for i, (r, s) in enumerate(zip(rewards, sees, strict=True))]
    gamma, omega = 0.9, 0.5

    def normalized(values: list[float]) -> list[float]:
        if min(values) == max(values):
            return [0.0] * len(values)
        return [(v - fmean(values)) / (stdev(values) + 1e-6) for v in values]

    episode = normalized([sum(r) for r in rewards])
    returns = {
        (i, k): sum(gamma ** (j - k) * r[j] for j in range(k, len(r)))
        for i, r in enumerate(rewards)
        for k in range(len(r))
    }
    slow = dict.fromkeys(returns, 0.0)
    for state in ("start", "low", "high"):
        members = [place for place in returns if sees[place[0]][place[1]] == state]
        slow |= dict(zip(members, normalized([returns[place] for place in members]), strict=True))
    batch = make("gigpo", gamma=gamma, step_weight=omega).batch(done)
    assert batch is not None
    found = {
        (int(t), int(p)): float(v)
        for t, p, v in zip(batch.chunks.trajectory, batch.chunks.position, batch.chunks.returns, strict=True)
    }
    assert found == pytest.approx({(i, k): episode[i] + omega * slow[i, k] for i, k in returns}, rel=1e-5)
    assert batch.chunks.positive.tolist() == [value > 0 for value in batch.chunks.returns]


def test_a_group_of_equal_sums_still_learns_from_its_steps(make: Make, build: Build) -> None:
    done = [stepped(build, "a", [1.0, 0.0], ["x", "y"]), stepped(build, "b", [0.0, 1.0], ["x", "y"])]
    batch = make("grpo").batch(done)
    assert batch is not None
    assert "dropped_groups" not in batch.metrics
    assert batch.chunks.returns.tolist() == pytest.approx([0.5, -1.5, 0.5, 0.5], rel=1e-4), "sums to come: 1, 0, 1, 1"
    assert make("grpo", step_weight=0).batch(done) is None, "without rewards of steps the group is even"


def test_reinforce_takes_returns_of_steps_as_they_are(make: Make, build: Build) -> None:
    batch = make("reinforce", gamma=0.5).batch([stepped(build, "a", [1.0, 2.0], ["x", "y"])])
    assert batch is not None
    assert batch.chunks.returns.tolist() == [3.0 + 1.0 + 0.5 * 2.0, 3.0 + 2.0]


def test_a_discount_of_steps_that_have_no_weight_is_refused() -> None:
    with pytest.raises(ValidationError, match="gamma does nothing with step_weight 0"):
        PolicyGradient.Config(gamma=0.9, step_weight=0)
