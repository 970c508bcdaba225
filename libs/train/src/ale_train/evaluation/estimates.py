"""Estimates over tasks, with 95 % intervals.

Tasks are the sample, not runs: runs of one task resemble each other, so an interval that counts each run is too narrow.
Everything here takes the values of each task apart, and the spread *between tasks* makes the interval. One task alone
has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy as np

LEVEL = 0.95
Tasks = Sequence[Sequence[float]]
"""For each task, the values of its runs, at least one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and the bounds of its 95 % confidence interval; None if there are too few tasks for one."""

    value: float
    low: float | None = None
    high: float | None = None


def pass_at(k: int, n: int, c: int) -> float:
    """Return the chance that at least one of `k` runs passes, if `c` of `n` did: 1 - C(n-c, k) / C(n, k), which has no
    bias. Raises `ValueError` unless 1 <= k <= n and 0 <= c <= n."""
    _check(k, n, c)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_all(k: int, n: int, c: int) -> float:
    """Return the chance that all of `k` runs pass (pass^k), if `c` of `n` did: C(c, k) / C(n, k). Raises `ValueError`
    as `pass_at` does."""
    _check(k, n, c)
    return math.comb(c, k) / math.comb(n, k)


def estimate_mean(tasks: Tasks) -> Estimate:
    """Return the mean of all values with the t interval of the spread between tasks.

    Tasks that are all alike have none: they do not show how much others would differ."""
    value, variance = _mean_and_variance(tasks)
    if len(tasks) < 2 or variance < 1e-24:
        return Estimate(value)
    half = t_quantile(len(tasks) - 1) * math.sqrt(variance)
    return Estimate(value, value - half, value + half)


def estimate_share(tasks: Tasks) -> Estimate:
    """Return the mean of values from 0 to 1 with Wilson's interval, which is honest near 0 and 1 too.

    The number of trials in it is the one whose binomial variance is the variance between tasks. If that is 0 (all tasks
    alike), each task is one trial."""
    value, variance = _mean_and_variance(tasks)
    if len(tasks) < 2:
        return Estimate(value)
    runs = sum(map(len, tasks))
    trials = min(float(runs), value * (1 - value) / variance) if variance > 1e-24 else float(len(tasks))
    t = t_quantile(len(tasks) - 1)
    middle = value + t * t / (2 * trials)
    half = t * math.sqrt((value * (1 - value) + t * t / (4 * trials)) / trials)
    scale = 1 + t * t / trials
    return Estimate(value, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))


def estimate_difference(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]
) -> tuple[Estimate, int] | None:
    """Return the mean of `second` less `first` over the tasks that both have, and their number; None if there are none.

    Differences are paired: how hard a task is cancels out, and the interval is narrower than those of the two alone."""
    shared = [task for task in first if task in second]
    if not shared:
        return None
    return estimate_mean([[fmean(second[task]) - fmean(first[task])] for task in shared]), len(shared)


@lru_cache
def t_quantile(freedom: int) -> float:
    """Return the bound that Student's t with `freedom` >= 1 degrees of freedom stays within with 95 % probability.

    With t = sqrt(freedom) tan(a), the density of a is cos(a) ** (freedom - 1); its integral is found on a grid, which
    is fine enough for 200 degrees. Beyond these, the first term of the expansion around the normal quantile is."""
    if freedom > 200:
        return 1.959964 * (1 + (1.959964**2 + 1) / (4 * freedom))
    angles = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angles) ** (freedom - 1)
    within = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(freedom) * math.tan(float(np.interp(LEVEL * within[-1], within, angles)))


def _mean_and_variance(tasks: Tasks) -> tuple[float, float]:
    """Return the mean of all values, and the variance of that mean as the spread between tasks shows it."""
    runs = sum(map(len, tasks))
    value = sum(map(sum, tasks)) / runs
    if len(tasks) < 2:
        return value, 0.0
    spread = sum((sum(values) - len(values) * value) ** 2 for values in tasks)
    return value, spread / runs**2 * len(tasks) / (len(tasks) - 1)


def _check(k: int, n: int, c: int) -> None:
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"k={k} of n={n} runs with c={c} passes: it must be 1 <= k <= n and 0 <= c <= n")
