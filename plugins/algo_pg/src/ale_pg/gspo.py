"""GSPO (Zheng et al., 2025, arXiv:2507.18071, Eqs. 5 to 7) is the clipped surrogate with one ratio per trajectory."""

from __future__ import annotations

from torch import Tensor

from ale_pg.ppo import clipped_surrogate
from ale_pg.terms import Terms, trajectory_shares
from ale_policy_loss.ratios import log_ratio


def gspo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    trajectories: Tensor,
    normalizer: float,
    low: float = 3e-4,
    high: float = 4e-4,
) -> Terms:
    """Return the mean over trajectories of `min(s A, clip(s, 1 - low, 1 + high) A)`. s is the geometric mean of the
    ratios of all tokens that the policy sampled in a trajectory. `normalizer` (Z) counts trajectories; the other
    tensors have shape [M], one entry per token with loss."""
    # All tokens of a trajectory have its s, and their shares add up to 1 / Z, so each trajectory counts once.
    shares = trajectory_shares(logprobs, trajectories, normalizer)
    return clipped_surrogate(log_ratio(logprobs, old, trajectories), advantages, shares, low, high)
