"""CISPO (MiniMax, 2025, arXiv:2506.13585, Eqs. 4 and 5) uses the clipped ratio as a weight, so that every token keeps
its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ale_torch.losses.likelihood import weighted_likelihood
from ale_torch.losses.ratios import LARGEST_LOG_RATIO, log_ratio
from ale_torch.losses.terms import Terms


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
    """Return `- sum_t s_t clip(r_t, 1 - low, 1 + high) A logprobs_t`; the ratio r carries no gradient.

    r is the geometric mean of the ratios of the tokens of a unit (`segments`) for which `kept` is not 0; the paper's
    unit is the token. All tensors are [M]. If `low` is 1 or more, there is no lower bound.
    """
    bound = LARGEST_LOG_RATIO
    with torch.no_grad():
        log = torch.nan_to_num(log_ratio(logprobs, old, segments, kept), nan=-bound, posinf=bound, neginf=-bound)
        ratio = log.clamp(-bound, bound).exp()
        weights = ratio.clamp(max(0.0, 1 - low), 1 + high) * advantages * shares
    return Terms(weighted_likelihood(logprobs, weights), ratio, low=ratio < 1 - low, high=ratio > 1 + high)
