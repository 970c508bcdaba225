"""The loss of IPA as pure functions over packed tensors (paper, 3.2.4.3).

Shapes: M tokens with loss, in any order; `segments` [M] int64 says which unit (token, chunk or trajectory) each token
belongs to, numbered from 0. Units, ratios (Eqs. 4, 8) and masks (Eqs. 6, 9) are those of `ale_policy_loss`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ale_policy_loss.likelihood import weighted_likelihood
from ale_policy_loss.ratios import log_ratio, mismatch_mask, ratio_of, truncated


@dataclass(frozen=True, slots=True)
class LossTerms:
    """`loss` is the scalar of Eq. 9; the rest is per token [M] and detached: ratio rho, weight w, mask m (0 or 1)."""

    loss: Tensor
    ratio: Tensor
    weight: Tensor
    mask: Tensor


def importance_weight(log_rho: Tensor, positive: Tensor) -> Tensor:
    """The weight w of Eq. 9: 1 on T+, `clip(rho, 0, 1)` on T-, where a ratio that does not exist counts as 0. [M]"""
    cut = truncated(log_rho)
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
    """Eq. 9 as a loss: `- sum_t w_t G_t m_t logprobs_t / Z`.

    All in float32 or better. logprobs [M] carries the gradient; old, engine, returns (G of the token's chunk) [M]; positive [M] bool (the
    token's trajectory is in T+). `w` and `m` carry none: they are weights, not part of the objective.
    """
    kind = torch.promote_types(logprobs.dtype, torch.float32)
    logprobs, old, engine, returns = (x.to(kind) for x in (logprobs, old, engine, returns))
    with torch.no_grad():
        log_rho = log_ratio(logprobs, old, ratio_segments)
        weight = importance_weight(log_rho, positive)
        mask = mismatch_mask(old, engine, mask_segments, threshold, lower)
        factor = weight * returns * mask / normalizer
        ratio = ratio_of(log_rho)
    return LossTerms(weighted_likelihood(logprobs, factor), ratio, weight, mask)
