"""Estimates over tasks: pass@k against all subsets, intervals against simulations."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_train.evaluation.estimates import (
    Estimate,
    estimate_difference,
    estimate_mean,
    estimate_share,
    pass_all,
    pass_at,
    t_quantile,
)

RUNS = st.lists(st.booleans(), min_size=1, max_size=9)


@settings(deadline=None)
@given(RUNS, st.data())
def test_pass_at_k_is_the_share_of_all_subsets_of_k_runs_in_which_one_passes(
    runs: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(runs)))
    subsets = list(combinations(runs, k))
    assert pass_at(k, len(runs), sum(runs)) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_all(k, len(runs), sum(runs)) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_pass_at_k_of_many_runs_is_exact() -> None:
    assert pass_at(1, 5_000, 1) == pytest.approx(1 / 5_000, rel=1e-9)
    assert pass_at(4_999, 5_000, 1) == pytest.approx(4_999 / 5_000)
    assert (pass_at(3, 5, 3), pass_all(3, 5, 2)) == (1.0, 0.0)


@pytest.mark.parametrize(("k", "n", "c"), [(0, 3, 1), (4, 3, 1), (1, 3, 4), (1, 3, -1)])
def test_impossible_counts_are_refused(k: int, n: int, c: int) -> None:
    with pytest.raises(ValueError, match="it must be 1 <= k <= n"):
        pass_at(k, n, c)


@pytest.mark.parametrize(
    ("freedom", "bound"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (10, 2.2281),
        (30, 2.0423),
        (200, 1.9719),
        (201, 1.9718),
        (10_000, 1.9602),
    ],
)
def test_the_bound_of_students_t_is_that_of_the_tables(freedom: int, bound: float) -> None:
    assert t_quantile(freedom) == pytest.approx(bound, abs=2e-4)


def draw_tasks(rng: np.random.Generator, tasks: int, runs: int, spread: float) -> list[list[float]]:
    """Passes of tasks that differ: their chances have the mean 0.6, and a beta distribution as wide as `spread`."""
    chances = np.full(tasks, 0.6) if spread == 0 else rng.beta(0.6 / spread, 0.4 / spread, tasks)
    return (rng.random((tasks, runs)) < chances[:, None]).astype(float).tolist()


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("tasks", "runs"), [(10, 1), (10, 3), (40, 3), (40, 16)])
def test_the_interval_of_a_share_holds_the_truth_in_95_of_100_experiments(tasks: int, runs: int, spread: float) -> None:
    """Whatever tasks differ by: an interval that counted each run would hold it in 80 to 88 of 100."""
    rng = np.random.default_rng(7)
    found = [estimate_share(draw_tasks(rng, tasks, runs, spread)) for _ in range(1_500)]
    held = np.mean([e.low <= 0.6 <= e.high for e in found if e.low is not None and e.high is not None])
    assert len(found) == 1_500
    assert 0.93 <= held <= 0.992


@pytest.mark.parametrize("tasks", [5, 30])
def test_the_interval_of_a_mean_holds_the_truth_in_95_of_100_experiments(tasks: int) -> None:
    rng = np.random.default_rng(8)
    held = []
    for _ in range(2_000):
        level = rng.normal(2.0, 1.0, (tasks, 1))
        found = estimate_mean((level + rng.normal(0, 0.5, (tasks, 3))).tolist())
        assert found.low is not None
        assert found.high is not None
        held.append(found.low <= 2.0 <= found.high)
    assert 0.935 <= np.mean(held) <= 0.965


def test_an_interval_does_not_claim_certainty_where_all_tasks_are_alike() -> None:
    none = estimate_share([[0.0] * 100] * 5)
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high is not None
    assert none.high > 0.5, "100 runs of 5 tasks are 5 tasks"
    assert estimate_mean([[0.25, 0.5], [0.5, 0.25]]) == Estimate(0.375)
    assert estimate_share([[1.0, 0.0]]) == Estimate(0.5), "one task says nothing about others"


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=2, max_size=8))
def test_bounds_of_a_share_lie_around_it_and_within_0_and_1(tasks: list[list[float]]) -> None:
    found = estimate_share(tasks)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.high <= 1


def test_a_difference_is_paired_over_the_tasks_that_both_runs_have() -> None:
    hard, easy = [0.0, 0.1], [0.9, 0.9]
    first = {"a": hard, "b": easy, "c": [0.5], "only here": [1.0]}
    second = {"a": [x + 0.1 for x in hard], "b": [x + 0.1 for x in easy], "c": [0.61], "only there": [0.0]}
    paired = estimate_difference(first, second)
    assert paired is not None
    found, tasks = paired
    assert tasks == 3
    assert (found.low, found.value, found.high) == pytest.approx((0.089, 0.1033, 0.118), abs=1e-3), "and not 0.5 wide"
    assert estimate_difference(first, {"x": [1.0]}) is None
