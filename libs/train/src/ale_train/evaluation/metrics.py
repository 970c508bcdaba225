"""The metrics of one evaluation, computed from its episodes; `docs/metrics.md` explains their names.

Summary, store and report hold the same names. `<name>_low` and `<name>_high` bound a figure with 95 % confidence.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from ale.trajectory import CUT_OFF, Trajectory
from ale_train.evaluation.estimates import Estimate, estimate_mean, estimate_share, pass_all, pass_at

Figures = dict[str, float]


def measure(done: Sequence[Trajectory], runs: int) -> Figures:
    """Return the metrics of the episodes of an evaluation, at least one; `runs` is how many were planned of each task.

    A task that lost runs to faults is left out of pass@k and pass^k for greater `k`, so that it counts as no
    failure."""
    figures = _measure_outcomes(done, runs) | _means_of_parts(done)
    figures |= {"episodes": len(done), "tasks": len({t.task_id for t in done})}
    by_tag: dict[str, list[Trajectory]] = defaultdict(list)
    for t in done:
        for tag in t.groups_for_success:
            by_tag[tag].append(t)
    for tag, of in by_tag.items():
        figures |= {f"{name}/{tag}": value for name, value in _measure_outcomes(of, runs).items()}
    return figures | {name: sum(map(count, done)) / len(done) for name, count in _MEANS.items()}


def tries(runs: int) -> list[int]:
    """Return the `k` of pass@k that are reported for so many runs of each task: powers of two, and all of them."""
    return sorted({runs, *(1 << i for i in range(runs.bit_length()) if 1 << i <= runs)})


def reward_of(trajectory: Trajectory) -> float:
    """Return the reward of an episode that has one."""
    assert trajectory.reward is not None, "an episode without a reward is rejected"
    return trajectory.reward.value


def sum_up(sets: Mapping[str, Figures]) -> Figures:
    """Return the metrics of several evaluation sets together; each set counts the same."""
    means = {name: sum(of[name] for of in sets.values()) / len(sets) for name in ("success", "reward")}
    return means | {name: sum(of[name] for of in sets.values()) for name in ("episodes", "tasks")}


def _measure_outcomes(done: Sequence[Trajectory], runs: int) -> Figures:
    """Return success, reward and, for several runs of each task, pass@k, pass^k and avg@n, with their bounds."""
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for t in done:
        by_task[t.task_id].append(t)
    figures = _bounded("success", estimate_share([[t.passed for t in of] for of in by_task.values()]))
    figures |= _bounded("reward", estimate_mean([[reward_of(t) for t in of] for of in by_task.values()]))
    for k in tries(runs):
        counts = [(len(of), sum(t.passed for t in of)) for of in by_task.values() if len(of) >= k]
        if not counts:
            continue
        figures |= _bounded(f"pass@{k}", passed := estimate_share([[pass_at(k, n, c)] for n, c in counts]))
        if k > 1:
            figures |= _bounded(f"pass^{k}", estimate_share([[pass_all(k, n, c)] for n, c in counts]))
        elif runs > 1:
            figures |= _bounded(f"avg@{runs}", passed)
    return figures


def _bounded(name: str, found: Estimate) -> Figures:
    bounds = {f"{name}_low": found.low, f"{name}_high": found.high}
    return {name: found.value} | {key: bound for key, bound in bounds.items() if bound is not None}


def _means_of_parts(done: Sequence[Trajectory]) -> Figures:
    """Return the mean of each named part of the reward, over the episodes that have it."""
    parts: dict[str, list[float]] = defaultdict(list)
    for t in done:
        for name, value in t.reward.parts.items() if t.reward is not None else ():
            parts[name].append(value)
    return {
        f"parts/{name}": sum(values) / len(values) for name, values in parts.items() if all(map(math.isfinite, values))
    }


_MEANS: dict[str, Callable[[Trajectory], float]] = {
    "chunks": lambda t: len(t.chunks),
    "turns": lambda t: len(t.turns),
    "branches": lambda t: max(0, len(t.sequences) - 1),
    "changed_echoes": lambda t: t.changed_echoes,
    "template_rewrites": lambda t: t.template_rewrites,
    "sampled_tokens": lambda t: t.sampled_tokens,
    "budget_ended": lambda t: t.ended_by in CUT_OFF,
    "episode_s": lambda t: t.seconds,
}
"""Means over episodes."""
