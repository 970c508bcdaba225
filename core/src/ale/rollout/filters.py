"""Decides which finished rollouts cannot be trusted (paper 3.2.4.1).

A *failing* agent is not an unreliable rollout: it stays, with its reward of zero. A rollout is rejected if it says
nothing about the policy: infrastructure faults, rewards that could not be computed, what an installed package filters
(`RolloutFilters`), and, in training alone, observers' vetoes: where a policy is judged (evaluation, pass rates), a
vetoed rollout counts with its result."""

from __future__ import annotations

from dataclasses import dataclass

from ale.config.run import FILTERS, RolloutConfig
from ale.errors import StartDiverged
from ale.registry.hooks import Hooks
from ale.rollout.episode import TRAINED_STAGES
from ale.specs.package_sections import RolloutFilters
from ale.trajectory import Trajectory

NO_REWARD, NO_CALL, VETOED = "no reward", "no model call", "vetoed"
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
        tools |= frozenset(config.deterministic_tools)
        asked = bool(config.max_illegal_calls or tools)
        self._configured: RolloutFilters | None = FILTERS.require()(config, tools) if asked else None
        self._hooks = hooks

    def rejection(self, trajectory: Trajectory) -> Rejection | None:
        """Return why this rollout must stay out of training; None if it may enter."""
        unscored = without_score(trajectory)
        if unscored is not None:
            return unscored
        if not trajectory.chunks:
            return Rejection(NO_CALL, NO_CALL)
        found = None if self._configured is None else self._configured.rejection(trajectory)
        if found is not None:
            return Rejection(found[0], *found)
        if trajectory.stage not in TRAINED_STAGES:
            return None
        veto = self._hooks.veto_reason("ale_filter_trajectory", trajectory=trajectory)
        return None if veto is None else Rejection(VETOED, veto)


def without_score(trajectory: Trajectory) -> Rejection | None:
    """Return why nothing can be learned from the rollout: it failed, or its reward could not be computed."""
    failure = trajectory.failure
    if failure is not None:
        done = dict(trajectory.timings)
        scoring = "act" in done and "score" not in done
        reason = NO_REWARD if scoring else f"{failure.kind} failure"
        return Rejection(reason, reason, failure.message)
    return Rejection(NO_REWARD, NO_REWARD) if trajectory.reward is None else None
