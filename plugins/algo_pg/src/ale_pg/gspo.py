"""GSPO (Zheng et al., 2025, arXiv:2507.18071, Eqs. 5 to 7) is the clipped surrogate with one ratio per trajectory."""

from __future__ import annotations

import torch
from torch import Tensor

from ale_pg.ppo import clipped_surrogate
from ale_pg.terms import Terms
from ale_policy_loss.ratios import log_ratio


def gspo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    trajectories: Tensor,
    shares: Tensor,
    low: float = 3e-4,
    high: float = 4e-4,
    mask: Tensor | None = None,
) -> Terms:
    """Return the mean over trajectories of `min(s A, clip(s, 1 - low, 1 + high) A)`. s is the geometric mean of the
    ratios of all tokens that the policy sampled in a trajectory, but for those where `mask` is 0. Tensors have shape
    [M], one entry per token with loss.

    Each token carries its own part of the gradient of s (Eq. 13: GSPO-token), so that one with a smaller share moves
    less. If the shares of a trajectory add up to 1 / Z, it counts once."""
    with torch.no_grad():
        if mask is None:
            mean = log_ratio(logprobs, old, trajectories)
        else:
            kept = mask > 0
            mean = torch.zeros_like(logprobs)
            mean[kept] = log_ratio(logprobs[kept], old[kept], trajectories[kept])
    return clipped_surrogate(mean + (logprobs - logprobs.detach()), advantages, shares, low, high)
