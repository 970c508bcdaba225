"""The clipped surrogate of PPO (Schulman et al., 2017, arXiv:1707.06347, Eq. 7), for any advantages.

Three algorithms without a critic are this surrogate with advantages of their own and another mean over the tokens,
which `shares` is. GRPO (Shao et al., 2024, arXiv:2402.03300, Eq. 3) takes the mean over trajectories of their means
over tokens, Dr. GRPO (Liu et al., 2025, arXiv:2503.20783) that of their sums divided by a constant, DAPO (Yu et al.,
2025, arXiv:2503.14476, Eq. 8) the mean over the tokens of all trajectories, with an upper bound that is looser than
the lower one. (DAPO's paper writes the mean for one group; here, as is usual, it is over the batch.)

A fourth has one ratio per trajectory: GSPO (Zheng et al., 2025, arXiv:2507.18071, Eqs. 5 to 7).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ale_torch.losses.policy_gradient import Terms
from ale_torch.losses.ratios import LARGEST_LOG_RATIO, difference, log_ratio


def ppo_clip(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    segments: Tensor,
    shares: Tensor,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
    kept: Tensor | None = None,
) -> Terms:
    """Return `- sum_t s_t min(r_t A, clip(r_t, 1 - low, 1 + high) A)`; tensors are [M].

    r is the geometric mean of the ratios of the tokens of a unit (`segments`) for which `kept` is not 0. Each token
    carries its own part of the gradient (GSPO's Eq. 13: GSPO-token), so that one with a smaller share moves less.
    Logarithms of ratios are limited to 20 and have no gradient beyond; a ratio that does not exist counts as nearly 0.

    With `dual` (Ye et al., 2020, arXiv:1912.09729, Eq. 5) the objective of a token with A < 0 is at least `dual A`."""
    bound = LARGEST_LOG_RATIO
    with torch.no_grad():
        log = log_ratio(logprobs, old, segments, kept)
    # The unit's ratio is the value; the gradient is that of the token's own logarithm.
    log = torch.nan_to_num(log, nan=-bound, posinf=bound, neginf=-bound) + difference(logprobs, logprobs.detach())
    ratio = log.clamp(-bound, bound).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    seen = ratio.detach()
    too_high = (seen > 1 + high) & (advantages > 0)
    if dual is not None:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual * advantages), objective)
        too_high |= (seen > dual) & (advantages < 0)
    return Terms(-(objective * shares).sum(), seen, low=(seen < 1 - low) & (advantages < 0), high=too_high)
