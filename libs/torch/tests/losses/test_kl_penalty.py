"""The penalty on leaving a reference policy, and the entropy bonus: values, slopes, what they estimate, extremes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ale.errors import PluginError
from ale.specs.trainer import ChunkTensors, LossInput
from ale_torch.losses.entropy import entropy_bonus
from ale_torch.losses.kl_penalty import LARGEST_LEAD, k1, k2, k3, reference_penalty
from ale_torch.losses.ratios import LARGEST_LOG_RATIO

INF = math.inf
LOGPROBS = st.floats(-8, 0)


def inputs_of(new: Tensor, reference: Tensor | None, sampled: list[bool], z: float = 3.0) -> LossInput:
    """Every token a chunk of its own."""
    ids = torch.arange(len(new))
    table = ChunkTensors(ids, ids, ids + 1, torch.ones(len(new)), ids >= 0, torch.tensor(sampled, dtype=torch.bool))
    return LossInput(new, torch.zeros(len(new)), None, new.detach(), ids, table, z, None, reference)


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.tuples(LOGPROBS, LOGPROBS, st.booleans(), st.floats(0.01, 1)), max_size=8),
    coef=st.floats(0.001, 10),
    shared=st.booleans(),
)
def test_loss_gradient_and_sums_are_those_of_a_loop_over_the_sampled_tokens(
    tokens: list[tuple[float, float, bool, float]], coef: float, shared: bool
) -> None:
    new = torch.tensor([t[0] for t in tokens], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([t[1] for t in tokens], dtype=torch.float64)
    shares = torch.tensor([t[3] for t in tokens], dtype=torch.float64) if shared else None
    found = reference_penalty(inputs_of(new, reference, [t[2] for t in tokens]), coef, shares)
    loss, total, slopes = 0.0, 0.0, []
    for pi, ref, sampled, share in tokens:
        weight = (share if shared else 1 / 3.0) * coef * sampled
        curved = min(ref - pi, LARGEST_LEAD)
        k = math.exp(curved) - 1 - curved + (math.exp(LARGEST_LEAD) - 1) * (ref - pi - curved)
        loss += weight * k
        total += k * sampled
        slopes.append(weight * (1 - math.exp(curved)))
    assert float(found.loss.detach()) == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert float(found.sums["kl_ref_sum"]) == pytest.approx(total, rel=1e-9, abs=1e-12)
    assert float(found.sums["kl_ref_tokens"]) == sum(t[2] for t in tokens)
    if tokens:
        (slope,) = torch.autograd.grad(found.loss, new)
        assert slope.tolist() == pytest.approx(slopes, rel=1e-9, abs=1e-12)


def test_the_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    new, reference = (torch.randn(9, dtype=torch.float64) - 3 for _ in range(2))
    torch.autograd.gradcheck(
        lambda x: reference_penalty(inputs_of(x, reference, [True] * 8 + [False]), 0.7).loss, new.requires_grad_()
    )


def test_on_samples_of_the_policy_it_estimates_the_divergence_and_its_slope_is_that_of_the_reverse_one() -> None:
    torch.manual_seed(1)
    logits, other = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.randn(6, dtype=torch.float64)
    pi, ref = torch.log_softmax(logits, -1), torch.log_softmax(other, -1)
    mean = (pi.detach().exp() * k3(pi, ref)).sum()
    assert float(mean.detach()) == pytest.approx(float((pi.exp() * (pi - ref)).sum().detach()))
    (found,) = torch.autograd.grad(mean, logits)
    (expected,) = torch.autograd.grad((ref.exp() * (ref - torch.log_softmax(logits, -1))).sum(), logits)
    assert torch.allclose(found, expected)


def test_the_other_estimators_are_schulmans_and_the_slope_of_the_second_is_that_of_the_divergence() -> None:
    torch.manual_seed(2)
    logits, other = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.randn(6, dtype=torch.float64)
    pi, ref = torch.log_softmax(logits, -1), torch.log_softmax(other, -1)
    gaps = [a - b for a, b in zip(pi.tolist(), ref.tolist(), strict=True)]
    assert k1(pi, ref).tolist() == pytest.approx(gaps)
    assert k2(pi, ref).tolist() == pytest.approx([gap**2 / 2 for gap in gaps])
    divergence = (pi.exp() * (pi - ref)).sum()
    assert float((pi.exp() * k1(pi, ref)).sum().detach()) == pytest.approx(float(divergence.detach()))
    (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    weights = pi.detach().exp()  # samples of pi: no gradient through their number
    (second,) = torch.autograd.grad((weights * k2(pi, ref)).sum(), logits, retain_graph=True)
    (first,) = torch.autograd.grad((weights * k1(pi, ref)).sum(), logits)
    assert torch.allclose(second, expected)
    assert first.abs().max() < 1e-12


def test_the_penalty_takes_the_estimator_that_is_asked_for() -> None:
    new, reference = torch.tensor([-1.0, -2.0]).double(), torch.tensor([-2.0, -2.5]).double()
    inputs = inputs_of(new, reference, [True, True], z=2.0)
    found = {name: float(reference_penalty(inputs, 1.0, None, name).loss) for name in ("k1", "k2", "k3")}
    d = (-1.0, -0.5)
    assert found == pytest.approx(
        {
            "k1": sum(-x for x in d) / 2,
            "k2": sum(x * x / 2 for x in d) / 2,
            "k3": sum(math.exp(x) - 1 - x for x in d) / 2,
        }
    )


@pytest.mark.parametrize("lead", [LARGEST_LEAD - 0.01, LARGEST_LEAD, 5.0, 19.9])
def test_no_token_pulls_harder_than_at_the_largest_lead_and_none_lets_go(lead: float) -> None:
    new = torch.tensor([-1.0 - lead], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(k3(new, torch.tensor([-1.0], dtype=torch.float64)).sum(), new)
    assert float(slope) == pytest.approx(-math.expm1(min(lead, LARGEST_LEAD)))
    beyond, at = (float(k3(torch.tensor([-LARGEST_LEAD - x]).double(), torch.zeros(1))) for x in (1e-3, 0.0))
    assert beyond - at == pytest.approx(1e-3 * math.expm1(LARGEST_LEAD), rel=1e-3), "it is continuous"


def test_the_penalty_has_a_mean_of_its_own_where_the_batch_says_so() -> None:
    new, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-2.0, -2.5])
    inputs = inputs_of(new, reference, [True, True], z=3.0)
    one, other = (reference_penalty(replace(inputs, reference_normalizer=z), 1.0).loss for z in (None, 6.0))
    assert float(one) == pytest.approx(2 * float(other))


def test_at_the_reference_it_is_nothing() -> None:
    new = torch.tensor([-1.0, -30.0], requires_grad=True)
    found = reference_penalty(inputs_of(new, new.detach(), [True, True]), 1.0)
    torch.autograd.backward(found.loss)
    assert (float(found.loss.detach()), float(found.sums["kl_ref_sum"])) == (0.0, 0.0)
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, 0.0]


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.tuples(*[st.sampled_from([-INF, -1e30, -1e4, -20.0, -1.0, -1e-30, 0.0])] * 2), min_size=1),
    narrow=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_extremes_give_neither_nan_nor_infinity(tokens: list[tuple[float, float]], narrow: torch.dtype) -> None:
    new = torch.tensor([t[0] for t in tokens], dtype=narrow, requires_grad=True)
    reference = torch.tensor([t[1] for t in tokens], dtype=narrow)
    found = reference_penalty(inputs_of(new, reference, [True] * len(tokens)), 1.0)
    torch.autograd.backward(found.loss)
    assert found.loss.dtype == (torch.float64 if narrow == torch.float64 else torch.float32)
    assert new.grad is not None
    assert torch.isfinite(found.loss)
    assert torch.isfinite(new.grad).all()
    beyond = torch.nan_to_num(new.detach().double() - reference.double()).abs() > LARGEST_LOG_RATIO
    assert (new.grad[beyond] == 0).all()


def test_a_batch_without_the_references_numbers_is_a_sentence_and_no_coefficient_needs_none() -> None:
    new = torch.tensor([-1.0], requires_grad=True)
    with pytest.raises(PluginError, match=r"fill TrainBatch\.reference_logprobs"):
        reference_penalty(inputs_of(new, None, [True]), 0.1)
    found = reference_penalty(inputs_of(new, None, [True]), 0.0)
    assert (float(found.loss), found.sums) == (0.0, {})


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.tuples(st.floats(0, 9), st.booleans(), st.floats(0.01, 1)), max_size=8),
    coef=st.floats(0.001, 10),
    shared=st.booleans(),
)
def test_the_entropy_bonus_and_its_slope_are_those_of_a_loop_over_the_sampled_tokens(
    tokens: list[tuple[float, bool, float]], coef: float, shared: bool
) -> None:
    entropy = torch.tensor([t[0] for t in tokens], dtype=torch.float64, requires_grad=True)
    new = torch.zeros(len(tokens), dtype=torch.float64, requires_grad=True)
    inputs = replace(inputs_of(new, None, [t[1] for t in tokens], z=7.0), entropy=entropy, reference_normalizer=3.0)
    shares = torch.tensor([t[2] for t in tokens], dtype=torch.float64) if shared else None
    found = entropy_bonus(inputs, coef, shares)
    weights = [coef * sampled * (share if shared else 1 / 3.0) for _, sampled, share in tokens]
    expected = -sum(w * t[0] for w, t in zip(weights, tokens, strict=True))
    assert float(found.detach()) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    if tokens:
        (slope,) = torch.autograd.grad(found, entropy)
        assert slope.tolist() == pytest.approx([-w for w in weights], rel=1e-9, abs=1e-12)


def test_an_entropy_without_gradient_is_a_sentence_and_no_coefficient_needs_none() -> None:
    inputs = inputs_of(torch.tensor([-1.0], requires_grad=True), None, [True])
    with pytest.raises(PluginError, match=r"entropy_coef is 0\.1, but the trainer's"):
        entropy_bonus(inputs, 0.1)
    assert float(entropy_bonus(inputs, 0.0)) == 0.0
