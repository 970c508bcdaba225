"""Means over seeds and their intervals, each against a slow loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_lab.confidence_intervals import RESAMPLES, bootstrap, picks

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


def slow_quantile(values: list[float], share: float) -> float:
    """The point at that share of the way through the sorted values, on a straight line between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(NUMBERS, min_size=n, max_size=n), min_size=1, max_size=3)))
def test_an_interval_is_that_of_a_slow_loop_over_resamples(columns: list[list[float]]) -> None:
    seeds, resamples = len(columns[0]), 200
    table = [[column[i] for column in columns] for i in range(seeds)]
    for column, interval in zip(columns, bootstrap(table, resamples), strict=True):
        means = [math.fsum(column[i] for i in drawn) / seeds for drawn in picks(seeds, resamples).tolist()]
        room = 1e-9 * max(1.0, *map(abs, column))
        assert interval.mean == pytest.approx(math.fsum(column) / seeds, abs=room)
        assert interval.low == pytest.approx(slow_quantile(means, 0.025), abs=room)
        assert interval.high == pytest.approx(slow_quantile(means, 0.975), abs=room)
        assert interval.seeds == seeds
        assert min(column) - room <= interval.low <= interval.high <= max(column) + room


def test_every_seed_is_drawn_as_often_as_any_other_and_always_the_same() -> None:
    drawn = picks(5)
    assert drawn.shape == (RESAMPLES, 5)
    assert np.bincount(drawn.ravel()) == pytest.approx(RESAMPLES, rel=0.05)
    assert (picks(5) == drawn).all()


def test_the_interval_of_a_known_case() -> None:
    # Two seeds with 0 and 1: the mean of a resample is 0, 0.5 or 1 with 1/4, 1/2, 1/4.
    (interval,) = bootstrap([[0.0], [1.0]])
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.0, 1.0)
    many = bootstrap(np.tile([[0.0], [1.0]], (50, 1)))[0]
    assert many.high - many.low == pytest.approx(2 * 1.96 * 0.5 / 10, rel=0.08), "as the normal distribution has it"


def test_one_seed_is_a_point_and_none_is_no_number() -> None:
    (one,) = bootstrap([[0.25]])
    assert (one.mean, one.low, one.high, one.seeds) == (0.25, 0.25, 0.25, 1)
    (none,) = bootstrap(np.empty((0, 1)))
    assert math.isnan(none.mean)
    assert none.seeds == 0
    assert bootstrap([]) == []
