"""Sums that add up over parts, and the metrics made of them, against a slow loop."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ale_torch.losses.metrics import common_metrics, ratio_maxima, ratio_sums, side_sums

TOKEN = st.tuples(st.floats(0.01, 5), st.floats(-5, 0), st.floats(-5, 0), st.sampled_from([-1.0, 0.0, 0.5]))
"""Ratio, log-probabilities of the policy and the old one, advantage."""


@settings(max_examples=100, deadline=None)
@given(
    trajectories=st.lists(st.lists(TOKEN, min_size=1, max_size=4), min_size=1, max_size=5),
    cut=st.integers(0, 5),
)
def test_metrics_are_those_of_a_loop_over_tokens_however_the_trajectories_are_cut(
    trajectories: list[list[tuple[float, float, float, float]]], cut: int
) -> None:
    # A trajectory's tokens share their advantage.
    owned = [(i, (*t[:3], own[0][3])) for i, own in enumerate(trajectories) for t in own]
    totals: dict[str, float] = {}
    largest: list[float] = []
    for part in ([o for o in owned if o[0] < cut], [o for o in owned if o[0] >= cut]):
        of = torch.tensor([i for i, _ in part], dtype=torch.long)
        ratio, new, old, value = torch.tensor([t for _, t in part], dtype=torch.float64).reshape(-1, 4).T
        sums: dict[str, Tensor] = {
            **ratio_sums(ratio, new, old),
            **side_sums(value > 0, value < 0, of),
            "loss_tokens": torch.tensor(float(len(part))),
            "entropy_sum": -new.sum(),
        }
        for name, number in sums.items():
            totals[name] = totals.get(name, 0.0) + float(number)
        largest += [float(x) for x in ratio_maxima(ratio).values()]
    found = common_metrics(totals | {"lr": 0.5})
    tokens = [t for _, t in owned]
    signs = [own[0][3] for own in trajectories]
    ratios = [t[0] for t in tokens]
    expected = {
        "loss_tokens": len(tokens),
        "trajectories": len(trajectories),
        "lr": 0.5,
        "entropy": fmean(-t[1] for t in tokens),
        "kl_old": fmean(math.exp(t[1] - t[2]) - 1 - (t[1] - t[2]) for t in tokens),
        "ratio": fmean(ratios),
        "effective_samples": sum(ratios) ** 2 / len(ratios) / sum(r * r for r in ratios),
        "positive": fmean(t[3] > 0 for t in tokens),
        "negative": fmean(t[3] < 0 for t in tokens),
        "positive_trajectories": fmean(s > 0 for s in signs),
        "negative_trajectories": fmean(s < 0 for s in signs),
    }
    assert found.pop("ratio_std") == pytest.approx(pstdev(ratios), abs=1e-6)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert max(largest) == max(ratios)


def test_a_single_ratio_that_overflows_does_not_swallow_the_others_nor_become_infinite() -> None:
    ratio = torch.full((4,), math.exp(20), dtype=torch.float32)
    ratio[0] = 1.0
    zeros = torch.zeros(4)
    totals = {k: float(v) for k, v in ratio_sums(ratio, zeros, zeros).items()} | {"loss_tokens": 4.0}
    assert common_metrics(totals)["effective_samples"] == pytest.approx(0.75, rel=1e-6)


def test_narrow_numbers_are_taken_apart_in_double_precision() -> None:
    new, old = (torch.full((3,), x, dtype=torch.bfloat16) for x in (-8.0, -7.96875))
    found = ratio_sums(torch.ones(3), new, old)
    assert float(found["kl_sum"]) == pytest.approx(3 * (math.expm1(-0.03125) + 0.03125), rel=1e-12)


def test_half_of_the_weight_on_one_of_many_tokens_is_a_small_effective_sample() -> None:
    ratio = torch.tensor([99.0, *[1.0] * 99])
    zeros = torch.zeros(100)
    totals = {k: float(v) for k, v in ratio_sums(ratio, zeros, zeros).items()} | {"loss_tokens": 100.0}
    assert common_metrics(totals)["effective_samples"] == pytest.approx(198**2 / 100 / (99**2 + 99))


def test_what_has_no_such_sums_has_no_such_metrics() -> None:
    assert common_metrics({"loss": 1.0}) == {"loss": 1.0}
    assert ratio_maxima(torch.zeros(0)) == {}
