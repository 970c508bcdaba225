"""This is REINFORCE (paper, Eq. 3; Sutton et al., 1999), plain and with truncated importance sampling (Eq. 4).

RLOO (Ahmadian et al., 2024, arXiv:2402.14740) is `reinforce` with leave-one-out advantages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ale_torch.losses.likelihood import weighted_likelihood
from ale_torch.losses.ratios import log_ratio, ratio_of, truncate
from ale_torch.losses.terms import Terms


def reinforce(logprobs: Tensor, advantages: Tensor, shares: Tensor) -> Terms:
    """Return Eq. 3: `- sum_t s_t A logprobs_t`. Tensors are [M]; logprobs carries the gradient."""
    return Terms(weighted_likelihood(logprobs, advantages * shares))


def tis(logprobs: Tensor, old: Tensor, advantages: Tensor, segments: Tensor, shares: Tensor, cap: float = 1.0) -> Terms:
    """Return Eq. 4: `- sum_t s_t clip(rho, 0, cap) A logprobs_t`.

    rho is the geometric-mean ratio of the token's unit, which in the paper is its trajectory. Tensors are [M]. The
    weight carries no gradient.
    """
    with torch.no_grad():
        log_rho = log_ratio(logprobs, old, segments)
        ratio = ratio_of(log_rho)
        weights = truncate(log_rho, cap) * advantages * shares
    return Terms(weighted_likelihood(logprobs, weights), ratio, high=ratio > cap)
