"""Which finished rollouts cannot be trusted (paper 3.2.4.1).

A *failing* agent is not an unreliable rollout: it stays, with its reward of zero. Rejected is what says nothing about
the policy: infrastructure faults, rewards that could not be computed, runs of illegal calls beyond a limit, and what
an observer vetoes.
"""

from __future__ import annotations

from ale.hooks import Hooks
from ale.run_config import RolloutConfig
from ale.trajectory import Trajectory


def rejection(trajectory: Trajectory, config: RolloutConfig, hooks: Hooks) -> str | None:
    """Why this rollout must stay out of training; None where it may enter."""
    if trajectory.failure is not None:
        return f"{trajectory.failure.kind} failure"
    if trajectory.reward is None:
        return "no reward"
    if not trajectory.chunks:
        return "no model call"
    if config.max_illegal_calls and illegal_run(trajectory) >= config.max_illegal_calls:
        return "illegal calls"
    return hooks.refusal("ale_filter_trajectory", trajectory=trajectory)


def illegal_run(trajectory: Trajectory) -> int:
    """The longest run of chunks in a row whose tool call was illegal."""
    longest = run = 0
    for chunk in trajectory.chunks:
        run = run + 1 if chunk.error is not None and chunk.error.kind == "illegal_call" else 0
        longest = max(longest, run)
    return longest
