"""Policy gradients whose ratios are weights without a gradient: REINFORCE, truncated importance sampling, TOPR, CISPO.
The clipped surrogate of PPO, GRPO and their kin is in `ale_torch.losses.ppo`.

All tensors are [M], over the tokens with loss; `logprobs` carries the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ale_torch.losses.policy_gradient import Terms, weighted_likelihood
from ale_torch.losses.ratios import LARGEST_LOG_RATIO, log_ratio, ratio_of, truncate


def reinforce(logprobs: Tensor, advantages: Tensor, shares: Tensor) -> Terms:
    """Return REINFORCE (paper, Eq. 3; Sutton et al., 1999): `- sum_t s_t A logprobs_t`.

    RLOO (Ahmadian et al., 2024, arXiv:2402.14740) is this with leave-one-out advantages."""
    return Terms(weighted_likelihood(logprobs, advantages * shares))


def tis(logprobs: Tensor, old: Tensor, advantages: Tensor, segments: Tensor, shares: Tensor, cap: float = 1.0) -> Terms:
    """Return REINFORCE with truncated importance sampling (Eq. 4): `- sum_t s_t clip(rho, 0, cap) A logprobs_t`.

    rho is the geometric-mean ratio of the token's unit, which in the paper is its trajectory.
    """
    with torch.no_grad():
        log_rho = log_ratio(logprobs, old, segments)
        ratio = ratio_of(log_rho)
        weights = truncate(log_rho, cap) * advantages * shares
    return Terms(weighted_likelihood(logprobs, weights), ratio, high=ratio > cap)


def topr(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    segments: Tensor,
    shares: Tensor,
    cap: float = 1.0,
    mask: Tensor | None = None,
) -> Terms:
    """Return TOPR (paper, Eq. 5; Le Roux et al., 2025, arXiv:2503.14286). With a `mask` of tokens whose pi_old / mu is
    above H it is the paper's baseline (Eq. 6).

    The weight is 1 if the advantage is above 0 (T+), otherwise `clip(rho, 0, cap)` (T-), times `mask`.

    rho is the geometric-mean ratio of the token's unit, which in the paper is its trajectory.
    """
    with torch.no_grad():
        positive = advantages > 0
        log_rho = log_ratio(logprobs, old, segments)
        ratio = ratio_of(log_rho)
        weights = torch.where(positive, torch.ones_like(ratio), truncate(log_rho, cap)) * advantages * shares
        if mask is not None:
            weights = weights * mask
    return Terms(weighted_likelihood(logprobs, weights), ratio, high=(ratio > cap) & ~positive, mask=mask)


def cispo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    segments: Tensor,
    shares: Tensor,
    low: float = 1.0,
    high: float = 0.28,
    kept: Tensor | None = None,
) -> Terms:
    """Return CISPO (MiniMax, 2025, arXiv:2506.13585, Eqs. 4 and 5): `- sum_t s_t clip(r_t, 1 - low, 1 + high) A
    logprobs_t`. The clipped ratio is a weight, so that every token keeps its gradient.

    r is the geometric mean of the ratios of the tokens of a unit (`segments`) for which `kept` is not 0; the paper's
    unit is the token. If `low` is 1 or more, there is no lower bound.
    """
    bound = LARGEST_LOG_RATIO
    with torch.no_grad():
        log = torch.nan_to_num(log_ratio(logprobs, old, segments, kept), nan=-bound, posinf=bound, neginf=-bound)
        ratio = log.clamp(-bound, bound).exp()
        weights = ratio.clamp(max(0.0, 1 - low), 1 + high) * advantages * shares
    return Terms(weighted_likelihood(logprobs, weights), ratio, low=ratio < 1 - low, high=ratio > 1 + high)
