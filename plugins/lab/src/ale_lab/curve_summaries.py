"""Numbers that summarize a curve (a metric by step), such as its last value; a column of a table shows one of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ale_lab.experiment import Curve

COLLAPSE_SHARE = 0.5
TAIL_SHARE = 0.25


def last(curve: Curve) -> float:
    """Return the last value."""
    return curve[-1][1]


def tail(curve: Curve) -> float:
    """Return the mean of the last quarter of the points, at least one."""
    count = max(1, round(len(curve) * TAIL_SHARE))
    return sum(value for _, value in curve[-count:]) / count


def area(curve: Curve) -> float:
    """Return the area under the curve (by trapezoids), divided by the number of steps that it spans."""
    if len(curve) == 1:
        return curve[0][1]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(curve)) / (curve[-1][0] - curve[0][0])


def spread(curve: Curve) -> float:
    """Return the standard deviation of the values over the steps."""
    return float(np.std([value for _, value in curve]))


def variation(curve: Curve) -> float:
    """Return the coefficient of variation: the standard deviation over the mean; 0 where all is 0."""
    mean = float(np.mean([value for _, value in curve]))
    return spread(curve) / abs(mean) if mean else 0.0


def largest(curve: Curve) -> float:
    """Return the largest value."""
    return max(value for _, value in curve)


def collapsed(curve: Curve) -> float:
    """Return 1 where the last value is below half of the best one before it, else 0."""
    return float(last(curve) < COLLAPSE_SHARE * largest(curve))


SUMMARIES: dict[str, Callable[[Curve], float]] = {
    f.__name__: f for f in (last, tail, area, spread, variation, largest, collapsed)
}
"""The numbers that a column of a table may show of a curve, by name."""
