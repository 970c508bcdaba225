"""Means over seeds with 95 % bootstrap intervals.

The bootstrap draws seeds with replacement, `RESAMPLES` times, and takes the 2.5th and 97.5th percentiles of the means;
its own seed is fixed, so that the same numbers always have the same interval. All functions are pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds with its interval. With one seed, `low` and `high` equal the mean; without any, all are NaN."""

    mean: float
    low: float
    high: float
    seeds: int


def picks(seeds: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Return the indices of the seeds that each resample draws, of shape [resamples, seeds]."""
    return np.random.default_rng(20_250_101).integers(seeds, size=(resamples, seeds))


def bootstrap(values: ArrayLike, resamples: int = RESAMPLES) -> list[Interval]:
    """Return the interval of each column of `values` [seeds, columns], which are finite; they share their resamples."""
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
