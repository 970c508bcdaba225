"""Statistics: means over seeds with 95 % bootstrap intervals, and the numbers that sum a curve up.

The bootstrap draws seeds with replacement, `RESAMPLES` times, and takes the 2.5th and 97.5th percentiles of the means;
its own seed is fixed, so that the same numbers always have the same interval. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from ale_lab.experiment import Curve

RESAMPLES = 10_000
LEVEL = 0.95
COLLAPSE_SHARE = 0.5
TAIL_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds with its interval; of one seed, or none, the interval is a point."""

    mean: float
    low: float
    high: float
    seeds: int


def picks(seeds: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Which seeds each resample draws: [resamples, seeds] numbers below `seeds`."""
    return np.random.default_rng(20_250_101).integers(seeds, size=(resamples, seeds))


def bootstrap(values: ArrayLike, resamples: int = RESAMPLES) -> list[Interval]:
    """The interval of each column of `values` [seeds, columns]; they share their resamples. Values are finite."""
    table = np.asarray(values, dtype=np.float64)
    if table.size == 0:
        return [Interval(math.nan, math.nan, math.nan, 0)] * (table.shape[1] if table.ndim == 2 else 0)
    seeds = len(table)
    drawn = picks(seeds, resamples)
    counts = np.stack([(drawn == i).sum(axis=1) for i in range(seeds)], axis=1)
    means = counts @ table / seeds
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return [
        Interval(float(m), float(a), float(b), seeds) for m, a, b in zip(table.mean(axis=0), low, high, strict=True)
    ]


def last(curve: Curve) -> float:
    """The value at the end."""
    return curve[-1][1]


def tail(curve: Curve) -> float:
    """The mean of the last quarter of the points, at least one."""
    count = max(1, round(len(curve) * TAIL_SHARE))
    return sum(value for _, value in curve[-count:]) / count


def area(curve: Curve) -> float:
    """The mean height: the area under the straight lines between the points, over the steps that they span."""
    if len(curve) == 1:
        return curve[0][1]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(curve)) / (curve[-1][0] - curve[0][0])


def spread(curve: Curve) -> float:
    """The standard deviation of the values over the steps."""
    return float(np.std([value for _, value in curve]))


def variation(curve: Curve) -> float:
    """The coefficient of variation: the standard deviation over the mean; 0 where all is 0."""
    mean = float(np.mean([value for _, value in curve]))
    return spread(curve) / abs(mean) if mean else 0.0


def largest(curve: Curve) -> float:
    """The largest value."""
    return max(value for _, value in curve)


def collapsed(curve: Curve) -> float:
    """1 where the last value is below half of the best one before it, else 0."""
    return float(last(curve) < COLLAPSE_SHARE * largest(curve))


SUMMARIES: dict[str, Callable[[Curve], float]] = {
    f.__name__: f for f in (last, tail, area, spread, variation, largest, collapsed)
}
"""The numbers that a column of a table may show of a curve, by name."""
