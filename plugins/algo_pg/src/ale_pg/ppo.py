"""This is the clipped surrogate of PPO (Schulman et al., 2017, arXiv:1707.06347, Eq. 7), without a critic.

Three variants are this surrogate with advantages of their own and another mean over the tokens, which `shares` is:
GRPO (Shao et al., 2024, arXiv:2402.03300, Eq. 3) takes the mean over trajectories of their means over tokens, Dr. GRPO
(Liu et al., 2025, arXiv:2503.20783) that of their sums divided by a constant, DAPO (Yu et al., 2025, arXiv:2503.14476,
Eq. 8) the mean over the tokens of all trajectories, with an upper bound that is looser than the lower one. (DAPO's
paper writes the mean for one group; here, as is usual, it is over the batch.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from ale_pg.terms import Terms
from ale_policy_loss.ratios import LARGEST_LOG_RATIO, gap


def ppo_clip(
    logprobs: Tensor, old: Tensor, advantages: Tensor, shares: Tensor, low: float = 0.2, high: float = 0.2
) -> Terms:
    """Return `- sum_t s_t min(r_t A, clip(r_t, 1 - low, 1 + high) A)` with the token's own ratio r; tensors are [M]."""
    return clipped_surrogate(gap(logprobs, old), advantages, shares, low, high)


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, shares: Tensor, low: float, high: float) -> Terms:
    """Return the same from logarithms of ratios [M] in any unit; the gradient flows through them.

    Logarithms are limited to 20 and have no gradient beyond; a ratio that does not exist counts as nearly 0.
    """
    bound = LARGEST_LOG_RATIO
    ratio = torch.nan_to_num(log_ratio, nan=-bound, posinf=bound, neginf=-bound).clamp(-bound, bound).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    seen = ratio.detach()
    return Terms(
        -(objective * shares).sum(),
        seen,
        low=(seen < 1 - low) & (advantages < 0),
        high=(seen > 1 + high) & (advantages > 0),
    )
