"""Means, intervals and the numbers that sum up a curve, each against a slow loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_lab.intervals import (
    RESAMPLES,
    SUMMARIES,
    area,
    bootstrap,
    collapsed,
    largest,
    last,
    picks,
    spread,
    tail,
    variation,
)

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)
CURVES = st.lists(st.tuples(st.integers(1, 50), NUMBERS), min_size=1, max_size=30).map(
    lambda gaps: [(float(sum(g for g, _ in gaps[: i + 1])), value) for i, (_, value) in enumerate(gaps)]
)


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


@given(CURVES)
def test_the_area_is_that_of_a_slow_loop(curve: list[tuple[float, float]]) -> None:
    total = 0.0
    for i in range(len(curve) - 1):
        width = curve[i + 1][0] - curve[i][0]
        total += width * min(curve[i][1], curve[i + 1][1]) + width * abs(curve[i + 1][1] - curve[i][1]) / 2
    wanted = total / (curve[-1][0] - curve[0][0]) if len(curve) > 1 else curve[0][1]
    assert area(curve) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@given(CURVES)
def test_the_other_numbers_are_those_of_slow_loops(curve: list[tuple[float, float]]) -> None:
    values = [value for _, value in curve]
    count = max(1, round(len(values) / 4))
    assert last(curve) == values[-1]
    assert largest(curve) == max(values)
    assert tail(curve) == pytest.approx(math.fsum(values[-count:]) / count, abs=1e-6)
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    assert spread(curve) == pytest.approx(deviation, rel=1e-6, abs=1e-6)


def test_what_goes_up_and_stays_has_not_collapsed() -> None:
    assert collapsed([(0, 0.3), (1, 0.8), (2, 0.5)]) == 0
    assert collapsed([(0, 0.3), (1, 0.8), (2, 0.39)]) == 1
    assert collapsed([(0, 0.0), (1, 0.0)]) == 0
    assert collapsed([(0, 0.4)]) == 0


def test_the_variation_has_no_unit_and_is_none_where_all_is_zero() -> None:
    curve = [(0.0, 1.0), (1.0, 3.0)]
    assert variation(curve) == pytest.approx(0.5)
    assert variation([(s, 10 * v) for s, v in curve]) == pytest.approx(0.5)
    assert variation([(0.0, 0.0), (1.0, 0.0)]) == 0
    assert {"last", "tail", "area", "spread", "variation", "largest", "collapsed"} == set(SUMMARIES)
