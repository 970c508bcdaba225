"""Ratios of two policies on sampled tokens, as logarithms, so that none overflows before it is cut.

Shapes: M tokens with loss; `segments` [M] as in `units`. Gradients flow through `log_ratio` and `gap`; who wants
weights calls them without.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ale_policy_loss.units import segment_mean

LARGEST_LOG_RATIO = 20.0
"""Ratios are computed up to e^20: beyond, they say no more than "far apart"."""


def difference(new: Tensor, old: Tensor) -> Tensor:
    """new - old of each token; 0 where both are the same infinity, which says nothing. [M]"""
    return torch.where(torch.isinf(new) & (new == old), torch.zeros_like(new), new - old)


def gap(new: Tensor, old: Tensor) -> Tensor:
    """new - old of each token, cut off where it says no more than "far apart"; no gradient from there on. [M]"""
    return difference(new, old).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def log_ratio(new: Tensor, old: Tensor, segments: Tensor) -> Tensor:
    """Logarithm of the geometric-mean ratio, `mean_t(new_t - old_t)` over each unit.

    [M]. Where both are -inf the token says nothing about the ratio and counts as equal; a unit with both +inf and
    -inf among its tokens has none, and gets nan.
    """
    return segment_mean(difference(new, old), segments)


def ratio_of(log: Tensor) -> Tensor:
    """A ratio to report from its logarithm: at most e^20, 1 where there is none. [M]"""
    return torch.nan_to_num(log, nan=0.0).clamp(max=LARGEST_LOG_RATIO).exp()


def truncated(log: Tensor, cap: float = 1.0) -> Tensor:
    """`clip(ratio, 0, cap)` from the ratio's logarithm; a ratio that does not exist counts as 0. [M]"""
    bound = math.log(cap)
    return torch.nan_to_num(log, nan=-math.inf, posinf=bound, neginf=-math.inf).clamp(max=bound).exp()


def mismatch_mask(
    old: Tensor, engine: Tensor, segments: Tensor, threshold: float, lower: float | None = None
) -> Tensor:
    """`m = 1[ratio(old, engine) <= H]` over each unit, and `>= lower` where given. [M], 0 or 1.

    A unit with a token that one side holds impossible is masked whatever `H` is: the two do not describe one policy.
    """
    log = log_ratio(old, engine, segments)
    keep = torch.isfinite(log) & (log <= math.log(threshold))
    if lower is not None:
        keep &= log >= math.log(lower)
    return keep.to(old.dtype)
