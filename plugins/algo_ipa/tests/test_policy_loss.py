"""The pure functions of the loss: gradients, edges, extremes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ale.specs.trainer import ChunkTensors
from ale_ipa.policy_loss import LossTerms, policy_loss
from ale_ipa.returns import chunk_return
from ale_torch.losses.ratios import log_ratio, mismatch_mask
from ale_torch.losses.segments import segments_of


@given(signal=st.floats(-1, 1), gamma=st.floats(0.1, 1), count=st.integers(1, 9))
def test_the_return_shrinks_by_gamma_on_its_way_back_from_the_last_chunk(
    signal: float, gamma: float, count: int
) -> None:
    returns = [chunk_return(signal, gamma, k, count) for k in range(count)]
    assert returns[-1] == signal
    for earlier, later in pairwise(returns):
        assert earlier == pytest.approx(gamma * later)


def test_the_gradient_is_the_weight_and_does_not_flow_through_the_ratio() -> None:
    new = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.5, -1.0, -0.5], dtype=torch.float64)
    returns = torch.full((3,), -0.3, dtype=torch.float64)
    segments = torch.tensor([0, 0, 1])
    terms = policy_loss(new, old, old, returns, torch.zeros(3, dtype=torch.bool), segments, segments, 2.0, None, 1.0)
    torch.autograd.backward(terms.loss)
    rho = math.exp(((-1.0 + 1.5) + (-2.0 + 1.0)) / 2)
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([0.3 * rho, 0.3 * rho, 0.3])


def test_old_and_current_logprobs_make_a_ratio_that_is_not_one() -> None:
    segments = torch.tensor([0, 0])
    assert log_ratio(torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -1.0]), segments).exp()[0] == pytest.approx(
        math.exp(0.5)
    )


@pytest.mark.parametrize("new", [[-1.0, -math.inf], [-math.inf, -math.inf]])
def test_impossible_tokens_and_overflowing_ratios_stay_finite(new: list[float]) -> None:
    logprobs = torch.tensor(new, requires_grad=True)
    old = torch.tensor([-math.inf, -700.0])
    positive = torch.zeros(2, dtype=torch.bool)
    segments = torch.arange(2)
    terms = policy_loss(
        logprobs,
        old,
        torch.tensor([-1.0, -900.0]),
        torch.tensor([-0.5, -0.5]),
        positive,
        segments,
        segments,
        2.0,
        None,
        1.0,
    )
    assert torch.isfinite(terms.weight).all()
    assert not torch.isnan(terms.loss)


def test_everything_masked_is_a_loss_of_zero_with_a_zero_gradient() -> None:
    new = torch.tensor([-1.0, -1.0], requires_grad=True)
    segments = torch.zeros(2, dtype=torch.long)
    terms = policy_loss(
        new,
        torch.tensor([0.0, 0.0]),
        torch.tensor([-9.0, -9.0]),
        torch.ones(2),
        torch.ones(2, dtype=torch.bool),
        segments,
        segments,
        2.0,
        None,
        1.0,
    )
    torch.autograd.backward(terms.loss)
    assert float(terms.loss.detach()) == 0.0
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, 0.0]


EXTREME = st.sampled_from([-math.inf, -3e38, -1e4, -50.0, -1.0, -1e-30, 0.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.tuples(EXTREME, EXTREME, EXTREME, st.integers(0, 2), st.integers(0, 2)), max_size=6),
    values=st.lists(st.sampled_from([-1e4, -1.0, 0.0, 1e-30, 1.0]), min_size=3, max_size=3),
    lower=st.none() | st.just(0.5),
)
def test_extremes_give_neither_nan_nor_infinity(
    dtype: torch.dtype, tokens: list[tuple[float, float, float, int, int]], values: list[float], lower: float | None
) -> None:
    new, old, engine = (torch.tensor([t[i] for t in tokens], dtype=dtype) for i in range(3))
    # What a softmax in these numbers gives is finite or impossible; the largest finite would overflow in a sum.
    new = torch.where(new < -1e38, torch.full_like(new, -math.inf), new).requires_grad_()
    of_ratio, of_mask = (torch.tensor([t[i] for t in tokens], dtype=torch.long) for i in (3, 4))
    returns = torch.tensor(values)[of_ratio]
    terms = policy_loss(new, old, engine, returns, returns > 0, of_ratio, of_mask, 2.0, lower, 3.0)
    assert terms.loss.dtype == torch.promote_types(dtype, torch.float32)
    for numbers in (terms.loss, terms.ratio, terms.weight, terms.mask):
        assert torch.isfinite(numbers).all()
    if tokens:
        (slopes,) = torch.autograd.grad(terms.loss, new)
        assert torch.isfinite(slopes).all()


def test_the_lower_bound_masks_the_other_tail() -> None:
    old, engine, segments = torch.tensor([-3.0]), torch.tensor([-1.0]), torch.tensor([0])
    assert mismatch_mask(old, engine, segments, 2.0).item() == 1.0
    assert mismatch_mask(old, engine, segments, 2.0, lower=0.5).item() == 0.0


def test_segments_tell_the_units_of_every_level_apart() -> None:
    ids = torch.tensor([4, 4, 7, 9])
    table = ChunkTensors(torch.tensor([0] * 8 + [3, 3]), *[torch.zeros(10)] * 5)
    assert segments_of("token", ids, table).tolist() == [0, 1, 2, 3]
    assert segments_of("chunk", ids, table).tolist() == [4, 4, 7, 9]
    assert segments_of("trajectory", ids, table).tolist() == [0, 0, 0, 3]


UNITS = {"token": torch.arange(12), "chunk": torch.arange(12) // 2, "trajectory": torch.arange(12) // 4}
"""Three trajectories of two chunks of two tokens."""
POSITIVE = UNITS["trajectory"] == 1
H, Z = 1.2, 3.0


def sample(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities of the policy, the old one and the engine, and returns."""
    g = torch.Generator().manual_seed(seed)
    new, to_old, to_engine, returns = torch.randn(4, 12, dtype=torch.float64, generator=g)
    old = new - 3 + 0.3 * to_old
    return new - 3, old, old + 0.3 * to_engine, returns


@pytest.mark.parametrize("ratio_level", UNITS)
@pytest.mark.parametrize("mask_level", UNITS)
def test_the_gradient_is_that_of_finite_differences_while_the_weights_stand_still(
    ratio_level: str, mask_level: str
) -> None:
    def terms(x: Tensor, begin: Tensor, old: Tensor, engine: Tensor, returns: Tensor) -> LossTerms:
        # Old policy and engine go where the policy goes, so that no ratio and no mask changes on the way.
        way = (x - begin).detach()
        units = UNITS[ratio_level], UNITS[mask_level]
        return policy_loss(x, old + way, engine + way, returns, POSITIVE, *units, H, None, Z)

    seen = set()
    for seed in range(8):
        new, *rest = sample(seed)
        found = terms(new, new, *rest)
        seen |= {(m > 0, r > 1) for m, r in zip(found.mask.tolist(), found.ratio.tolist(), strict=True)}
        for away in (0.0, 0.7):
            at = (new + away).requires_grad_()
            assert torch.autograd.gradcheck(lambda x, given=(new, *rest): terms(x, *given).loss, (at,))
    assert len(seen) == 4, "masked and not, each with ratios on either side of 1"


@pytest.mark.parametrize("ratio_level", UNITS)
@pytest.mark.parametrize("mask_level", UNITS)
def test_the_gradient_is_the_equations_wherever_the_policy_has_gone_from_the_old_one(
    ratio_level: str, mask_level: str
) -> None:
    begin, old, engine, returns = sample(4)
    direction = sample(5)[3]
    of_ratio, of_mask = UNITS[ratio_level], UNITS[mask_level]
    failures = []
    for away in (0.0, 0.1, -0.1, 1.0, -4.0):
        new = begin + away * direction
        at = new.clone().requires_grad_()
        terms = policy_loss(at, old, engine, returns, POSITIVE, of_ratio, of_mask, H, None, Z)
        (slopes,) = torch.autograd.grad(terms.loss, at)
        expected = []
        for t in range(12):
            unit = [u for u in range(12) if of_ratio[u] == of_ratio[t]]
            rho = math.exp(sum(float(new[u] - old[u]) for u in unit) / len(unit))
            unit = [u for u in range(12) if of_mask[u] == of_mask[t]]
            kept = math.exp(sum(float(old[u] - engine[u]) for u in unit) / len(unit)) <= H
            weight = 1.0 if POSITIVE[t] else min(1.0, rho)
            expected.append(-weight * float(returns[t]) * kept / Z)
        assert slopes.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)
        failures.append(slopes[~POSITIVE])
    assert not any(torch.allclose(a, b) for a, b in pairwise(failures)), "the weights of failures follow the policy"


def test_one_token_chunks_have_the_tokens_own_ratio() -> None:
    new, old = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    assert log_ratio(new, old, torch.tensor([3, 5])).tolist() == [0.5, -1.0]


def test_nothing_to_average_is_nothing() -> None:
    empty = torch.zeros(0)
    none = torch.zeros(0, dtype=torch.long)
    terms = policy_loss(empty, empty, empty, empty, none > 0, none, none, 2.0, None, 1.0)
    assert float(terms.loss) == 0.0


def test_a_unit_that_one_side_holds_impossible_is_masked_whatever_the_threshold() -> None:
    segments = torch.tensor([0, 0, 1])
    for impossible in (torch.tensor([-math.inf, -1.0, -1.0]), torch.tensor([-math.inf, math.inf, -1.0])):
        assert mismatch_mask(impossible, torch.full((3,), -1.0), segments, 1e9).tolist() == [0.0, 0.0, 1.0]
