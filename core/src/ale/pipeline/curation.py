"""Which demonstrations a stage of the warm start is trained on: rules that a trajectory tells of itself (paper, 3.2.2).

Stage one wants many, stage two the few that are verified, without repair loops and long. What takes a judge (false positives, style)
comes in as the reward that it gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ale.rollout.selection import carries
from ale.supervised_config import Curation
from ale.trajectory import Trajectory

Rule = Callable[[Trajectory, Curation], bool]

RULES: Mapping[str, Rule] = {
    "passed_only": lambda t, c: t.passed or not c.passed_only,
    "min_reward": lambda t, c: c.min_reward is None or (t.reward is not None and t.reward.value >= c.min_reward),
    "max_error_turns": lambda t, c: c.max_error_turns is None or _errors(t) <= c.max_error_turns,
    "max_turn_tokens": lambda t, c: c.max_turn_tokens is None or max(map(len, t.turns), default=0) <= c.max_turn_tokens,
    "min_turns": lambda t, c: len(t.turns) >= c.min_turns,
    "complete_only": lambda t, c: not c.complete_only or _complete(t),
    "tags": lambda t, c: carries(t.tags, c.tags),
}
"""Key of `Curation` -> whether a trajectory is kept by it."""

CUT_OFF = frozenset({"budget", "timeout", "failure", "max_turns", "agent_timeout"})
"""What `Trajectory.ended_by` says of an episode that its agent did not end."""


def curated(trajectories: Sequence[Trajectory], keep: Curation) -> tuple[list[Trajectory], Counter[str]]:
    """What is kept, in its order, and how many each key has left out (the first that did, for each)."""
    out, left_out = list[Trajectory](), Counter[str]()
    for trajectory in trajectories:
        against = next((key for key, rule in RULES.items() if not rule(trajectory, keep)), None)
        if against is None:
            out.append(trajectory)
        else:
            left_out[against] += 1
    if keep.per_task is not None:
        best = {id(t) for t in _best(out, keep.per_task)}
        left_out += Counter(per_task=len(out) - len(best))
        out = [t for t in out if id(t) in best]
    return out, left_out


def _best(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Of each task the best so many; of equals the earlier."""
    by_task: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=_badness):
        by_task.setdefault(trajectory.task_id, []).append(trajectory)
    return [t for found in by_task.values() for t in found[:count]]


def _badness(trajectory: Trajectory) -> tuple[float, int, int]:
    reward = float("-inf") if trajectory.reward is None else trajectory.reward.value
    return -reward, _errors(trajectory), len(trajectory.turns)


def _errors(trajectory: Trajectory) -> int:
    return sum(chunk.error is not None for chunk in trajectory.turns)


def _complete(trajectory: Trajectory) -> bool:
    return trajectory.ended_by not in CUT_OFF and all(chunk.finish_reason != "length" for chunk in trajectory.turns)
