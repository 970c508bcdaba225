"""The loss of IPA as pure functions over packed tensors (paper, 3.2.4.3).

Shapes: M tokens with loss, in any order; `segments` [M] int64 says which unit (token, chunk or trajectory) each token
belongs to, numbered from 0. Ratios are computed as logarithms, so that none overflows before it is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ale.specs.trainer import ChunkTensors
from ale_ipa.signals import Level

LARGEST_LOG_RATIO = 20.0
"""Ratios are reported up to e^20; above 1 their size does not matter to the loss."""


@dataclass(frozen=True, slots=True)
class LossTerms:
    """`loss` is the scalar of Eq. 9; the rest is per token [M] and detached: ratio rho, weight w, mask m (0 or 1)."""

    loss: Tensor
    ratio: Tensor
    weight: Tensor
    mask: Tensor


def segments_of(level: Level, chunk_ids: Tensor, chunks: ChunkTensors) -> Tensor:
    """The unit of each token at this level. [M]"""
    if level == "token":
        return torch.arange(len(chunk_ids), device=chunk_ids.device)
    return chunk_ids if level == "chunk" else torch.as_tensor(chunks.trajectory)[chunk_ids]


def segment_mean(values: Tensor, segments: Tensor) -> Tensor:
    """Mean over each token's unit, given back to each token. [M] -> [M]"""
    if len(segments) == 0:
        return values
    n = int(segments.max()) + 1
    sums = values.new_zeros(n).index_add_(0, segments, values)
    counts = values.new_zeros(n).index_add_(0, segments, torch.ones_like(values))
    return (sums[segments]) / counts[segments]


def log_ratio(new: Tensor, old: Tensor, segments: Tensor) -> Tensor:
    """Logarithm of the geometric-mean ratio, `mean_t(new_t - old_t)` over each unit (Eq. 8; Eq. 4 for trajectories).

    [M]. Where both are -inf the token says nothing about the ratio and counts as equal; a unit with both +inf and
    -inf among its tokens has none, and gets nan.
    """
    difference = torch.where(new == old, torch.zeros_like(new), new - old)
    return segment_mean(difference, segments)


def importance_weight(log_rho: Tensor, positive: Tensor) -> Tensor:
    """The weight w of Eq. 9: 1 on T+, `clip(rho, 0, 1)` on T-, where a ratio that does not exist counts as 0. [M]"""
    truncated = torch.nan_to_num(log_rho, nan=-math.inf, posinf=0.0, neginf=-math.inf).clamp(max=0.0).exp()
    return torch.where(positive, torch.ones_like(truncated), truncated)


def mismatch_mask(
    old: Tensor, engine: Tensor, segments: Tensor, threshold: float, lower: float | None = None
) -> Tensor:
    """`m = 1[ratio(old, engine) <= H]` of Eq. 9, and `>= lower` where given. [M], 0 or 1.

    A unit with a token that one side holds impossible is masked whatever `H` is: the two do not describe one policy.
    """
    log = log_ratio(old, engine, segments)
    keep = torch.isfinite(log) & (log <= math.log(threshold))
    if lower is not None:
        keep &= log >= math.log(lower)
    return keep.to(old.dtype)


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

    logprobs [M] carries the gradient; old, engine, returns (G of the token's chunk) [M]; positive [M] bool (the
    token's trajectory is in T+). `w` and `m` carry none: they are weights, not part of the objective.
    """
    with torch.no_grad():
        log_rho = log_ratio(logprobs, old, ratio_segments)
        weight = importance_weight(log_rho, positive)
        mask = mismatch_mask(old, engine, mask_segments, threshold, lower)
        factor = weight * returns * mask / normalizer
        ratio = torch.nan_to_num(log_rho, nan=0.0).clamp(max=LARGEST_LOG_RATIO).exp()
    # 0 x -inf is nan: what has no weight must not turn the sum into one.
    terms = torch.where(factor == 0, torch.zeros_like(logprobs), factor * logprobs)
    return LossTerms(-terms.sum(), ratio, weight, mask)
