"""Corrections by pi_old / mu: against loops over plain numbers, at their bounds, and settings that make no sense."""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from ale_torch.losses.rollout_correction import accept, correct, unit_ratio, weigh
from ale_torch.losses.settings import Correction

CHUNKS = torch.tensor([0, 0, 1, 2, 2, 2])
"""Six tokens in three chunks of two trajectories."""
OWNERS = torch.tensor([0, 0, 1])


def inputs(engine: Tensor) -> Any:
    return SimpleNamespace(engine_logprobs=engine, chunk_ids=CHUNKS, chunks=SimpleNamespace(trajectory=OWNERS))


def ratio(old: Tensor, engine: Tensor, unit: Any) -> list[float]:
    chunks: Any = SimpleNamespace(trajectory=OWNERS)
    return unit_ratio(old, engine, unit, CHUNKS, chunks).tolist()


GAPS = st.lists(st.floats(-4, 4), min_size=6, max_size=6)


@given(gaps=GAPS)
def test_a_ratio_is_that_of_its_unit(gaps: list[float]) -> None:
    engine = torch.full((6,), -5.0, dtype=torch.float64)
    old = engine + torch.tensor(gaps, dtype=torch.float64)
    first, second = gaps[:3], gaps[3:]
    means = [math.exp(sum(part) / len(part)) for part in (first, second)]
    products = [math.prod(map(math.exp, part)) for part in (first, second)]
    assert ratio(old, engine, "token") == pytest.approx([math.exp(gap) for gap in gaps])
    assert ratio(old, engine, "chunk")[:3] == pytest.approx(
        [math.exp((gaps[0] + gaps[1]) / 2)] * 2 + [math.exp(gaps[2])]
    )
    assert ratio(old, engine, "trajectory") == pytest.approx([means[0]] * 3 + [means[1]] * 3)
    assert ratio(old, engine, "sequence") == pytest.approx([products[0]] * 3 + [products[1]] * 3)


@given(values=st.lists(st.floats(0, 20), max_size=9), cap=st.floats(1.01, 9))
def test_weights_are_cut_or_dropped_at_the_cap(values: list[float], cap: float) -> None:
    rho = torch.tensor(values, dtype=torch.float64)
    assert weigh(rho, Correction(weight="truncate", cap=cap)).tolist() == [min(x, cap) for x in values]
    masked = weigh(rho, Correction(weight="mask", cap=cap)).tolist()
    assert masked == [x if 1 / cap <= x <= cap else 0.0 for x in values]


def test_bounds_of_a_rejection_are_accepted_themselves() -> None:
    rho = torch.tensor([0.49, 0.5, 1.0, 2.0, 2.01, math.nan])
    assert accept(rho, (0.5, 2.0)).tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("unit", ["token", "chunk", "trajectory", "sequence"])
def test_a_token_that_one_side_gives_no_probability_has_no_weight_and_is_rejected(unit: str) -> None:
    engine = torch.full((6,), -1.0)
    old = torch.tensor([-1.0, -math.inf, -1.0, -1.0, -1.0, -1.0])
    correction = Correction.model_validate({"level": unit, "reject": [0.0, 9.0], "reject_level": unit})
    made = correct(correction, old, inputs(engine))
    with_it = {"token": [1], "chunk": [0, 1]}.get(unit, [0, 1, 2])
    want = [float(i not in with_it) for i in range(6)]
    assert made.weights.tolist() == made.accepted.tolist() == want


def test_what_is_equal_on_both_sides_is_left_as_it_is() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -math.inf, -1e-3, -30.0, -4.0])
    made = correct(Correction(level="sequence", reject=(0.99, 1.01)), logprobs, inputs(logprobs))
    assert made.weights.tolist() == made.accepted.tolist() == [1.0] * 6
    nothing = correct(None, logprobs, inputs(logprobs))
    assert nothing.weights.tolist() == nothing.accepted.tolist() == [1.0] * 6
    assert nothing.sums == {}


def test_sums_are_of_the_tokens_that_are_not_rejected() -> None:
    engine = torch.full((6,), -5.0, dtype=torch.float64)
    old = engine + torch.tensor([4.0, 0.5, 0.6, 5.0, 5.0, 5.0], dtype=torch.float64).log()
    made = correct(Correction(cap=2, reject=(0.5, 3), reject_level="chunk"), old, inputs(engine))
    # Chunk 0 has the geometric mean sqrt(2); the first of its tokens is cut. Chunk 2 is rejected.
    assert made.accepted.tolist() == [1, 1, 1, 0, 0, 0]
    sums = {name: float(value) for name, value in made.sums.items()}
    assert sums == pytest.approx(
        {
            "correction_sum": 2 + 0.5 + 0.6,
            "correction_square_sum": 4 + 0.25 + 0.36,
            "corrected_tokens": 1,
            "accepted_tokens": 3,
        }
    )


def test_settings_that_do_nothing_or_cannot_be_are_refused_by_a_sentence() -> None:
    for given_settings, words in (
        ({"weight": "none"}, "corrects nothing"),
        ({"weight": "none", "reject": [0.5, 2], "cap": 3}, "cap do nothing with weight 'none'"),
        ({"reject": [2, 0.5]}, "the smaller one first"),
        ({"reject_level": "token"}, "does nothing without reject"),
        ({"cap": 1}, "greater than 1"),
    ):
        with pytest.raises(ValidationError, match=words):
            Correction.model_validate(given_settings)
    made = Correction(level="sequence", reject=(0.5, 2.0))
    assert pickle.loads(pickle.dumps(made)) == made
