"""TOPR (paper, Eq. 5; Le Roux et al., 2025, arXiv:2503.14286), and with the token mask of the paper's baseline (Eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from ale_pg.terms import Terms
from ale_policy_loss.likelihood import weighted_likelihood
from ale_policy_loss.ratios import log_ratio, mismatch_mask, ratio_of, truncated


def topr(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    trajectories: Tensor,
    shares: Tensor,
    cap: float = 1.0,
    mask: Tensor | None = None,
) -> Terms:
    """Eq. 5: weight 1 where the advantage is above 0 (T+), `clip(rho(tau), 0, cap)` elsewhere (T-); times `mask`.

    All [M]. The weight carries no gradient.
    """
    with torch.no_grad():
        positive = advantages > 0
        log_rho = log_ratio(logprobs, old, trajectories)
        ratio = ratio_of(log_rho)
        weights = torch.where(positive, torch.ones_like(ratio), truncated(log_rho, cap)) * advantages * shares
        if mask is not None:
            weights = weights * mask
    return Terms(weighted_likelihood(logprobs, weights), ratio, high=(ratio > cap) & ~positive, mask=mask)


def topr_token_mask(
    logprobs: Tensor,
    old: Tensor,
    engine: Tensor,
    advantages: Tensor,
    trajectories: Tensor,
    shares: Tensor,
    cap: float = 1.0,
    threshold: float = 2.0,
) -> Terms:
    """Eq. 6: Eq. 5 without the tokens whose pi_old / mu is above `threshold` (H). All [M]."""
    each = torch.arange(len(old), device=old.device)
    mask = mismatch_mask(old, engine, each, threshold)
    return topr(logprobs, old, advantages, trajectories, shares, cap, mask)
