"""The numbers that summarize a curve, each against a slow loop."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_lab.curve_summaries import SUMMARIES, area, collapsed, largest, last, spread, tail, variation

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)
CURVES = st.lists(st.tuples(st.integers(1, 50), NUMBERS), min_size=1, max_size=30).map(
    lambda gaps: [(float(sum(g for g, _ in gaps[: i + 1])), value) for i, (_, value) in enumerate(gaps)]
)


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
