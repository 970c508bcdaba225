"""The pure functions: what is known of them beside their equations, slopes by finite differences, and extremes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ale_pg.surrogates import cispo, reinforce, tis, topr
from ale_torch.losses.policy_gradient import Terms, even_shares, trajectory_shares
from ale_torch.losses.ppo import ppo_clip
from ale_torch.losses.ratios import log_ratio, mismatch_mask

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Terms]
"""(new, old, engine, advantages, trajectories) -> terms."""
Z = 3.0


def shares(new: Tensor) -> Tensor:
    return even_shares(new, Z)


def each(new: Tensor) -> Tensor:
    return torch.arange(len(new))


def token_mask(old: Tensor, mu: Tensor, threshold: float = 2.0) -> Tensor:
    return mismatch_mask(old, mu, torch.arange(len(old)), threshold)


CLIPPED: dict[str, Loss] = {
    "ppo_clip": lambda new, old, mu, a, of: ppo_clip(new, old, a, each(new), shares(new)),
    "dual_clip": lambda new, old, mu, a, of: ppo_clip(new, old, a, each(new), shares(new), dual=1.5),
    "grpo": lambda new, old, mu, a, of: ppo_clip(new, old, a, each(new), trajectory_shares(new, of, Z)),
}
"""Those whose ratio carries the gradient."""
WEIGHTED: dict[str, Loss] = {
    "reinforce": lambda new, old, mu, a, of: reinforce(new, a, shares(new)),
    "tis": lambda new, old, mu, a, of: tis(new, old, a, of, shares(new)),
    "topr": lambda new, old, mu, a, of: topr(new, old, a, of, shares(new)),
    "topr_token_mask": lambda new, old, mu, a, of: topr(new, old, a, of, shares(new), mask=token_mask(old, mu)),
    "cispo": lambda new, old, mu, a, of: cispo(new, old, a, each(new), shares(new)),
}
"""Those whose ratio is a weight."""


def gspo(new: Tensor, old: Tensor, mu: Tensor, a: Tensor, of: Tensor) -> Terms:
    return ppo_clip(new, old, a, of, trajectory_shares(new, of, Z), 0.2, 0.2)


LOSSES = CLIPPED | WEIGHTED | {"gspo": gspo}


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sample(seed: int, spread: float = 0.5, n: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """New, old and engine's log-probabilities, advantages and trajectories of n tokens: four trajectories of three."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(n, dtype=torch.float64, generator=g)  # noqa: E731
    of = torch.arange(n) // 3
    at = draw() - 3
    return at, at + spread * draw(), at + spread * draw(), draw()[of], of


def gradient(loss: Loss, new: Tensor, *rest: Tensor) -> Tensor:
    at = new.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(at, *rest).loss, at)
    return found


@pytest.mark.parametrize("name", CLIPPED)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    for seed in range(6):
        new, *rest = sample(seed)
        # Where a bound is near, a difference would step over it.
        ratios = CLIPPED[name](new, *rest).ratio
        assert ratios is not None
        assert min(float((ratios - b).abs().min()) for b in (0.8, 1.2, 1.28)) > 1e-5
        at = new.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, n=name, r=rest: CLIPPED[n](x, *r).loss, (at,), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_weight_carries_no_gradient_and_the_likelihood_all_of_it(name: str) -> None:
    new, *rest = sample(1)
    slopes = gradient(WEIGHTED[name], new, *rest)
    # The loss is linear in the log-probabilities while the weights stand still.
    assert float((slopes * new).sum()) == pytest.approx(float(WEIGHTED[name](new, *rest).loss))


@pytest.mark.parametrize("name", [*CLIPPED, "cispo", "tis", "topr"])
def test_old_logprobs_that_are_the_current_ones_make_another_gradient(name: str) -> None:
    new, _, *rest = sample(2)
    old = new + 0.1  # every ratio is below 1, so that no weight is cut to 1
    assert not torch.allclose(gradient(LOSSES[name], new, old, *rest), gradient(LOSSES[name], new, new, *rest))


@pytest.mark.parametrize("name", ["ppo_clip", "cispo", "tis", "topr"])
def test_at_a_ratio_of_one_the_gradient_is_that_of_reinforce(name: str) -> None:
    new, _, *rest = sample(3)
    assert torch.allclose(gradient(LOSSES[name], new, new, *rest), gradient(LOSSES["reinforce"], new, new, *rest))


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_at_a_ratio_of_one_a_mean_over_trajectories_is_that_of_reinforce_too(name: str) -> None:
    new, _, mu, a, of = sample(3)
    of = torch.tensor([0] * 5 + [1] + [2] * 6)
    a = tensor(0.7, -1.1, 0.4)[of]

    def mean(new: Tensor, old: Tensor, mu: Tensor, a: Tensor, of: Tensor) -> Terms:
        return reinforce(new, a, trajectory_shares(new, of, Z))

    assert torch.allclose(gradient(LOSSES[name], new, new, mu, a, of), gradient(mean, new, new, mu, a, of))


def test_gspo_of_one_token_sequences_is_the_clipped_surrogate_of_tokens() -> None:
    new, old, mu, a, _ = sample(4)
    one, other = (gradient(LOSSES[name], new, old, mu, a, each(new)) for name in ("gspo", "ppo_clip"))
    assert torch.allclose(one, other)


def test_the_gradient_of_gspo_is_that_of_its_geometric_mean() -> None:
    """Each token carries its own part (GSPO-token); where all have the same share the two are one."""
    new, old, mu, a, of = sample(9)

    def mean(new: Tensor, old: Tensor, mu: Tensor, a: Tensor, of: Tensor) -> Terms:
        ratio = log_ratio(new, old, of).exp()
        part = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
        return Terms(-(part * trajectory_shares(new, of, Z)).sum())

    assert torch.allclose(gradient(gspo, new, old, mu, a, of), gradient(mean, new, old, mu, a, of))


def test_tokens_that_are_not_kept_are_not_in_the_ratio_of_their_unit() -> None:
    new, old, of = tensor(-1, -1, -1), tensor(-1.1, -1.3, -3), torch.zeros(3, dtype=torch.long)
    found = ppo_clip(new, old, torch.ones(3), of, shares(new), 0.2, 9, kept=tensor(1, 1, 0)).ratio
    assert found is not None
    assert found.tolist() == pytest.approx([math.exp(0.2), math.exp(0.2), 1])


def test_dual_clip_bounds_what_one_failed_token_can_do() -> None:
    new, old = tensor(-1, -1, -1), tensor(-1.1, -4, -4)
    advantages = tensor(-1, -1, 1)
    found = ppo_clip(new, old, advantages, each(new), shares(new), 0.2, 0.2, dual=3)
    assert float(found.loss) == pytest.approx((math.exp(0.1) + 3 - 1.2) / Z)
    assert found.high is not None
    assert found.high.tolist() == [False, True, True]


def test_a_sequence_outside_the_bounds_loses_all_of_its_gradient() -> None:
    new, old = tensor(-1, -1, -1), tensor(-1, -4, -1)
    found = gradient(LOSSES["gspo"], new, old, new, torch.ones(3), torch.tensor([0, 0, 1]))
    assert found.tolist() == pytest.approx([0, 0, -1 / Z])


def test_topr_of_successes_alone_is_supervised() -> None:
    new, old, mu, a, of = sample(5)
    nll: Loss = lambda n, o, m, a, t: reinforce(n, a, shares(n))  # noqa: E731
    a = a.abs() + 0.1
    assert torch.allclose(gradient(LOSSES["topr"], new, old, mu, a, of), gradient(nll, new, old, mu, a, of))


def test_topr_of_failures_alone_is_truncated_importance_sampling() -> None:
    new, old, mu, a, of = sample(6)
    a = -a.abs()
    assert torch.allclose(gradient(LOSSES["topr"], new, old, mu, a, of), gradient(LOSSES["tis"], new, old, mu, a, of))


def test_a_mask_without_a_threshold_to_speak_of_is_none() -> None:
    new, old, mu, a, of = sample(7)
    open_: Loss = lambda n, o, m, a, t: topr(n, o, a, t, shares(n), mask=token_mask(o, m, 1e9))  # noqa: E731
    assert torch.equal(gradient(open_, new, old, mu, a, of), gradient(LOSSES["topr"], new, old, mu, a, of))


def test_everything_masked_is_a_loss_of_zero_with_a_zero_gradient() -> None:
    new, old, _, a, of = sample(8)
    assert gradient(LOSSES["topr_token_mask"], new, old, old - 9, a, of).tolist() == [0.0] * len(new)


def test_the_weight_of_a_trajectory_is_one_over_all_of_its_rows() -> None:
    """Eq. 4's ratio is of the trajectory: tokens that stand apart in the batch share it, and neighbours need not."""
    new, old, of = tensor(-1, -1, -1), tensor(-0.5, -1, -0.1), torch.tensor([0, 1, 0])
    found = gradient(LOSSES["tis"], new, old, new, torch.ones(3), of)
    rho = math.exp((-0.5 - 0.9) / 2)
    assert found.tolist() == pytest.approx([-rho / Z, -1 / Z, -rho / Z])


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_to_average_is_nothing(name: str) -> None:
    none = torch.zeros(0, dtype=torch.float64)
    of = torch.zeros(0, dtype=torch.long)
    assert float(LOSSES[name](none, none, none, none, of).loss) == 0.0


EXTREME = st.sampled_from([-math.inf, -3e38, -800.0, -50.0, -1.0, -1e-30, 0.0])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.tuples(EXTREME, EXTREME, EXTREME, st.integers(0, 2)), min_size=1, max_size=6),
    values=st.lists(st.sampled_from([-1e4, -1.0, 0.0, 1e-30, 1.0]), min_size=3, max_size=3),
)
def test_extremes_give_neither_nan_nor_infinity(
    name: str, dtype: torch.dtype, tokens: list[tuple[float, float, float, int]], values: list[float]
) -> None:
    new, old, mu = (torch.tensor([t[i] for t in tokens], dtype=dtype) for i in range(3))
    of = torch.tensor([t[3] for t in tokens])
    new = torch.where(new < -1e38, torch.full_like(new, -math.inf), new)
    at = new.clone().requires_grad_()
    terms = LOSSES[name](at, old, mu, torch.tensor(values, dtype=dtype)[of], of)
    (slopes,) = torch.autograd.grad(terms.loss, at)
    assert torch.isfinite(terms.loss)
    assert torch.isfinite(slopes).all()
    if terms.ratio is not None:
        assert torch.isfinite(terms.ratio).all()
