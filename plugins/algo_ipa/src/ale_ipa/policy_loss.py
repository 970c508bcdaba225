"""The loss of IPA (Eq. 9) as pure functions over packed tensors (paper, 3.2.4.3).

There are M tokens with loss, in any order; `segments` [M] int64 gives the number, from 0, of the unit (token, chunk or
trajectory) of each token. `ale_torch.losses` defines units, ratios (Eqs. 4, 8) and masks (Eqs. 6, 9).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ale_torch.losses.policy_gradient import weighted_likelihood
from ale_torch.losses.ratios import log_ratio, mismatch_mask, ratio_of, truncate


@dataclass(frozen=True, slots=True)
class LossTerms:
    """`loss` is the scalar of Eq. 9; ratio rho, weight w and mask m (0 or 1) are per token [M] and detached."""

    loss: Tensor
    ratio: Tensor
    weight: Tensor
    mask: Tensor


def importance_weight(log_rho: Tensor, positive: Tensor) -> Tensor:
    """Return the weight w of Eq. 9 [M]: 1 on T+, `clip(rho, 0, 1)` on T-. A ratio that does not exist counts as 0."""
    cut = truncate(log_rho)
    return torch.where(positive, torch.ones_like(cut), cut)


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    engine: Tensor,
    returns: Tensor,
    positive: Tensor,
    ratio_segments: Tensor,
    mask_segments: Tensor,
    threshold: float,
    lower: float | None,
    normalizer: float,
) -> LossTerms:
    """Return Eq. 9 as a loss: `- sum_t w_t G_t m_t logprobs_t / Z`.

    All tensors are [M] and are computed in float32 or better. `returns` is G of the token's chunk; `positive` (bool)
    says whether the token's trajectory is in T+. Only `logprobs` carries a gradient: `w` and `m` are weights, not part
    of the objective."""
    kind = torch.promote_types(logprobs.dtype, torch.float32)
    logprobs, old, engine, returns = (x.to(kind) for x in (logprobs, old, engine, returns))
    with torch.no_grad():
        log_rho = log_ratio(logprobs, old, ratio_segments)
        weight = importance_weight(log_rho, positive)
        mask = mismatch_mask(old, engine, mask_segments, threshold, lower)
        factor = weight * returns * mask / normalizer
        ratio = ratio_of(log_rho)
    return LossTerms(weighted_likelihood(logprobs, factor), ratio, weight, mask)
