"""Decides which finished rollouts cannot be trusted (paper 3.2.4.1).

A *failing* agent is not an unreliable rollout: it stays, with its reward of zero. A rollout is rejected if it says
nothing about the policy: infrastructure faults, rewards that could not be computed, tools that contradict themselves
(`contradictions.py`), and, in training alone, illegal calls in a row and observers' vetoes: where a policy is judged
(evaluation, pass rates), such a rollout counts with its result."""

from __future__ import annotations

from dataclasses import dataclass

from ale.config.episode import RolloutConfig
from ale.errors import OverlongPrompt, StartDiverged
from ale.registry.hooks import Hooks
from ale.rollout.contradictions import KnownAnswers
from ale.rollout.episode import RL_STAGE, TRAINED_STAGES
from ale.trajectory import Trajectory

NO_REWARD, NO_CALL, VETOED = "no reward", "no model call", "vetoed"
OVERLONG = "overlong prompt"
"""No other try of the task could have room."""
ILLEGAL, UNRELIABLE = "illegal calls", "unreliable tool"
DIVERGED = f"{StartDiverged.kind} failure"
"""The kind that `without_score` gives to a rollout that did not reach its start."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a rollout is rejected: `kind` is counted, `reason` is stored, `detail` explains it; `final`: no other try."""

    kind: str
    reason: str
    detail: str = ""
    final: bool = False


class Filter:
    """It judges the rollouts of a run, one after the other.

    `tools` are those that the scaffolds declare deterministic; `rollout.deterministic_tools` adds more.
    """

    def __init__(self, config: RolloutConfig, hooks: Hooks, tools: frozenset[str] = frozenset()) -> None:
        self._max_illegal_calls = config.max_illegal_calls
        self._tools = tools | frozenset(config.deterministic_tools)
        self._answers = KnownAnswers(config.ignore_in_answers)
        self._hooks = hooks

    def rejection(self, trajectory: Trajectory) -> Rejection | None:
        """Return why this rollout must stay out of training; None if it may enter."""
        unscored = without_score(trajectory)
        if unscored is not None:
            return unscored
        if not trajectory.chunks:
            return Rejection(NO_CALL, NO_CALL)
        illegal = illegal_run(trajectory)
        if trajectory.stage == RL_STAGE and 0 < self._max_illegal_calls <= illegal:
            return Rejection(ILLEGAL, ILLEGAL, f"{illegal} illegal calls came in a row.")
        contradiction = self._answers.contradiction(trajectory, self._tools)
        if contradiction is not None:
            return Rejection(UNRELIABLE, UNRELIABLE, contradiction)
        if trajectory.stage not in TRAINED_STAGES:
            return None
        veto = self._hooks.veto_reason("ale_filter_trajectory", trajectory=trajectory)
        return None if veto is None else Rejection(VETOED, veto)


def without_score(trajectory: Trajectory) -> Rejection | None:
    """Return why nothing can be learned from the rollout: it failed, or its reward could not be computed."""
    failure = trajectory.failure
    if failure is not None:
        if failure.kind == OverlongPrompt.kind:
            return Rejection(OVERLONG, OVERLONG, failure.message)
        done = dict(trajectory.timings)
        scoring = "act" in done and "score" not in done
        reason = NO_REWARD if scoring else f"{failure.kind} failure"
        return Rejection(reason, reason, failure.message)
    return Rejection(NO_REWARD, NO_REWARD) if trajectory.reward is None else None


def illegal_run(trajectory: Trajectory) -> int:
    """Return the longest run of consecutive turns in which the policy's own tool call was illegal; side calls are no
    turns, and the chunks that its start answered are not the policy's."""
    longest = run = 0
    for chunk in trajectory.turns:
        if not chunk.sampled:
            continue
        run = run + 1 if chunk.error is not None and chunk.error.kind == "illegal_call" else 0
        longest = max(longest, run)
    return longest
