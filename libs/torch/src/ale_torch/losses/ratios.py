"""Ratios of two policies on sampled tokens, as logarithms, so that none overflows before it is clipped.

Shapes: M tokens with loss; `segments` [M] as in `units`. Gradients flow through `log_ratio` and `gap`; call them under
`no_grad` for weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ale_torch.losses.segments import segment_mean

LARGEST_LOG_RATIO = 20.0
"""Ratios are computed up to e^20; larger ones only mean that the policies are far apart."""


def difference(new: Tensor, old: Tensor) -> Tensor:
    """Compute new - old of each token; 0 if both are the same infinity. [M]"""
    return torch.where(torch.isinf(new) & (new == old), torch.zeros_like(new), new - old)


def gap(new: Tensor, old: Tensor) -> Tensor:
    """Compute new - old of each token, clamped to +-20 nats, without gradient beyond. [M]"""
    return difference(new, old).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def log_ratio(new: Tensor, old: Tensor, segments: Tensor, kept: Tensor | None = None) -> Tensor:
    """Logarithm of the geometric-mean ratio, `mean_t(new_t - old_t)` over each unit; with `kept`, over those of its
    tokens where that is not 0, and 0 for the others.

    [M]. A token with -inf in both counts as equal; a unit with both +inf and -inf among its tokens has no ratio and
    gets nan.
    """
    each = difference(new, old)
    if kept is None:
        return segment_mean(each, segments)
    chosen = kept > 0
    return torch.zeros_like(each).masked_scatter(chosen, segment_mean(each[chosen], segments[chosen]))


def ratio_of(log: Tensor) -> Tensor:
    """Compute a ratio to report from its logarithm: at most e^20, and 1 if it does not exist. [M]"""
    return torch.nan_to_num(log, nan=0.0).clamp(max=LARGEST_LOG_RATIO).exp()


def truncate(log: Tensor, cap: float = 1.0) -> Tensor:
    """`clip(ratio, 0, cap)` from the ratio's logarithm; a ratio that does not exist counts as 0. [M]"""
    bound = math.log(cap)
    return torch.nan_to_num(log, nan=-math.inf, posinf=bound, neginf=-math.inf).clamp(max=bound).exp()


def mismatch_mask(
    old: Tensor, engine: Tensor, segments: Tensor, threshold: float, lower: float | None = None
) -> Tensor:
    """`m = 1[ratio(old, engine) <= H]` over each unit, and `>= lower` where given. [M], 0 or 1.

    A unit with a token of probability 0 on one side is always masked: the two do not describe one policy.
    It is computed in double precision, so that `masked` gets the same result even next to a bound.
    """
    log = log_ratio(old.double(), engine.double(), segments)
    keep = torch.isfinite(log) & (log <= math.log(threshold))
    if lower is not None:
        keep &= log >= math.log(lower)
    return keep.to(old.dtype)
