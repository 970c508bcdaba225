"""The filters that a run file configures in its section `rollout`."""

from __future__ import annotations

from typing import Any

from ale.rollout.episode import RL_STAGE
from ale.specs.package_sections import RolloutFilters
from ale.trajectory import Trajectory
from ale_rollout_filters.contradictions import KnownAnswers

ILLEGAL, UNRELIABLE = "illegal calls", "unreliable tool"


class ConfiguredFilters(RolloutFilters):
    """It judges the rollouts of a run, one after the other, and remembers what tools answered."""

    def __init__(self, config: Any, tools: frozenset[str]) -> None:
        self._max_illegal_calls = config.max_illegal_calls
        self._tools = tools
        self._answers = KnownAnswers(config.ignore_in_answers)

    def rejection(self, trajectory: Trajectory) -> tuple[str, str] | None:
        """See `RolloutFilters.rejection`. Where a policy is judged, its illegal calls count with their result."""
        run = illegal_run(trajectory)
        if trajectory.stage == RL_STAGE and self._max_illegal_calls and run >= self._max_illegal_calls:
            return ILLEGAL, f"{run} illegal calls came in a row."
        contradiction = self._answers.contradiction(trajectory, self._tools)
        return None if contradiction is None else (UNRELIABLE, contradiction)


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
