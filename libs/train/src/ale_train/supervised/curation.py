"""Chooses the demonstrations on which a stage of fine-tuning trains, by rules over the recorded trajectories (paper,
3.2.2). Stage one needs many demonstrations; stage two needs the few that are verified, long, and without repair loops.
Properties that only a judge can see (false positives, style) are selected by the reward that the judge gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ale.rollout.selection import carries
from ale.trajectory import CUT_OFF, Trajectory
from ale_train.config.supervised import Curation

Rule = Callable[[Trajectory, Curation], bool]

RULES: Mapping[str, Rule] = {
    "passed_only": lambda t, c: t.passed or not c.passed_only,
    "min_reward": lambda t, c: c.min_reward is None or (t.reward is not None and t.reward.value >= c.min_reward),
    "max_error_turns": lambda t, c: c.max_error_turns is None or _count_errors(t) <= c.max_error_turns,
    "max_turn_tokens": lambda t, c: c.max_turn_tokens is None or max(map(len, t.turns), default=0) <= c.max_turn_tokens,
    "min_turns": lambda t, c: len(t.turns) >= c.min_turns,
    "complete_only": lambda t, c: not c.complete_only or _is_complete(t),
    "tags": lambda t, c: carries(t.tags, c.tags),
}
"""For each key of `Curation`, a function that returns whether the key keeps a trajectory."""


def curate(trajectories: Sequence[Trajectory], keep: Curation) -> tuple[list[Trajectory], Counter[str]]:
    """Return the demonstrations that are kept, in their order, and how many each key leaves out; a demonstration counts
    only for the first key that leaves it out."""
    out, left_out = list[Trajectory](), Counter[str]()
    for trajectory in trajectories:
        against = next((key for key, rule in RULES.items() if not rule(trajectory, keep)), None)
        if against is None:
            out.append(trajectory)
        else:
            left_out[against] += 1
    if keep.per_task is not None:
        best = {id(t) for t in _best_of_each_task(out, keep.per_task)}
        left_out += Counter(per_task=len(out) - len(best))
        out = [t for t in out if id(t) in best]
    return out, left_out


def _best_of_each_task(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Return the best `count` demonstrations of each task; between equal ones, the earlier is better."""
    by_task: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=_preference_key):
        by_task.setdefault(trajectory.task_id, []).append(trajectory)
    return [t for found in by_task.values() for t in found[:count]]


def _preference_key(trajectory: Trajectory) -> tuple[float, int, int]:
    reward = float("-inf") if trajectory.reward is None else trajectory.reward.value
    return -reward, _count_errors(trajectory), len(trajectory.turns)


def _count_errors(trajectory: Trajectory) -> int:
    return sum(chunk.error is not None for chunk in trajectory.turns)


def _is_complete(trajectory: Trajectory) -> bool:
    return trajectory.ended_by not in CUT_OFF and all(chunk.finish_reason != "length" for chunk in trajectory.turns)
