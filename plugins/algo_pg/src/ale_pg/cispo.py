"""CISPO (MiniMax, 2025, arXiv:2506.13585, Eqs. 4 and 5) uses the clipped ratio as a weight, so that every token keeps
its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ale_pg.terms import Terms
from ale_policy_loss.likelihood import weighted_likelihood
from ale_policy_loss.ratios import gap


def cispo(
    logprobs: Tensor, old: Tensor, advantages: Tensor, shares: Tensor, low: float = 1.0, high: float = 0.28
) -> Terms:
    """Return `- sum_t s_t clip(r_t, 1 - low, 1 + high) A logprobs_t`; the token's own ratio r carries no gradient.

    All tensors are [M]. If `low` is 1 or more, there is no lower bound.
    """
    with torch.no_grad():
        ratio = gap(logprobs, old).exp()
        weights = ratio.clamp(max(0.0, 1 - low), 1 + high) * advantages * shares
    return Terms(weighted_likelihood(logprobs, weights), ratio, low=ratio < 1 - low, high=ratio > 1 + high)
