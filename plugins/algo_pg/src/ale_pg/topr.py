"""This is TOPR (paper, Eq. 5; Le Roux et al., 2025, arXiv:2503.14286). With a mask of tokens whose pi_old / mu is above
H it is the paper's baseline (Eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from ale_torch.losses.likelihood import weighted_likelihood
from ale_torch.losses.ratios import log_ratio, ratio_of, truncate
from ale_torch.losses.terms import Terms


def topr(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    segments: Tensor,
    shares: Tensor,
    cap: float = 1.0,
    mask: Tensor | None = None,
) -> Terms:
    """Return Eq. 5: the weight is 1 if the advantage is above 0 (T+), otherwise `clip(rho, 0, cap)` (T-), times `mask`.

    rho is the geometric-mean ratio of the token's unit, which in the paper is its trajectory. Tensors are [M]. The
    weight carries no gradient.
    """
    with torch.no_grad():
        positive = advantages > 0
        log_rho = log_ratio(logprobs, old, segments)
        ratio = ratio_of(log_rho)
        weights = torch.where(positive, torch.ones_like(ratio), truncate(log_rho, cap)) * advantages * shares
        if mask is not None:
            weights = weights * mask
    return Terms(weighted_likelihood(logprobs, weights), ratio, high=(ratio > cap) & ~positive, mask=mask)
