"""The loss of IPA as pure functions over packed tensors (paper 3.2.4.3).

Shapes: M tokens with loss, in any order; `segments` [M] int64 says which unit (token, chunk or trajectory) each token
belongs to. All arithmetic is in the log domain and in the type of the inputs, so that a ratio cannot overflow before
it is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ale.specs.trainer import ChunkTensors

Level = Literal["chunk", "token", "trajectory"]


@dataclass(frozen=True)
class LossTerms:
    """`loss` is the scalar of Eq. 9; the rest is per token [M] and detached: ratio, weight w, mask m, G."""

    loss: Tensor
    ratio: Tensor
    weight: Tensor
    mask: Tensor


def segments_of(level: Level, chunk_ids: Tensor, chunks: ChunkTensors) -> Tensor:
    """The unit of each token at this level, as consecutive numbers from 0. [M] int64."""
    if level == "token":
        return torch.arange(len(chunk_ids), device=chunk_ids.device)
    ids = chunk_ids if level == "chunk" else chunks.trajectory[chunk_ids]
    return torch.unique(ids, return_inverse=True)[1]


def segment_mean(values: Tensor, segments: Tensor) -> Tensor:
    """Mean over each token's unit, given back to each token. [M] -> [M]."""
    n = int(segments.max()) + 1 if len(segments) else 0
    sums = values.new_zeros(n).index_add_(0, segments, values)
    counts = values.new_zeros(n).index_add_(0, segments, torch.ones_like(values))
    return (sums / counts)[segments]


def log_ratio(new: Tensor, old: Tensor, segments: Tensor) -> Tensor:
    """Log of the geometric-mean ratio of Eq. 8 (Eq. 4 for trajectories): `mean_t(new_t - old_t)` per unit. [M].

    Where both are -inf the token says nothing about the ratio and counts as equal.
    """
    difference = torch.where(new == old, torch.zeros_like(new), new - old)
    return segment_mean(difference, segments)


def mismatch_mask(
    old: Tensor, engine: Tensor, segments: Tensor, threshold: float, lower: float | None = None
) -> Tensor:
    """`m = 1[ratio(old, engine) <= H]`, and `>= lower` where given. [M], 0 or 1."""
    log = log_ratio(old, engine, segments)
    keep = log <= torch.tensor(threshold, dtype=log.dtype, device=log.device).log()
    if lower is not None:
        keep &= log >= torch.tensor(lower, dtype=log.dtype, device=log.device).log()
    return keep.to(old.dtype)


def chunk_return(signal: float, gamma: float, position: int, count: int) -> float:
    """Eq. 7: `G_k = gamma^(K - k) R` for the chunk at `position` (from 0) of `count`; the last one gets `R`."""
    return signal * gamma ** (count - 1 - position)


def policy_loss(
    logprobs: Tensor, old: Tensor, engine: Tensor, returns: Tensor, positive: Tensor,
    ratio_segments: Tensor, mask_segments: Tensor, threshold: float, lower: float | None, scale: Tensor,
) -> LossTerms:  # fmt: skip
    """Eq. 9 as a loss: `- sum_t w_t G_t m_t logprobs_t * scale_t`.

    logprobs [M] carries the gradient; old, engine, returns [M]; positive [M] bool (the token's trajectory is in T+).
    `w` is 1 on T+ and `clip(rho, 0, 1)` on T-, without gradient. `scale` [M] is `1/Z` or its per-unit form.
    """
    with torch.no_grad():
        ratio = log_ratio(logprobs, old, ratio_segments).clamp(max=20.0).exp()
        weight = torch.where(positive, torch.ones_like(ratio), ratio.clamp(max=1.0))
        mask = mismatch_mask(old, engine, mask_segments, threshold, lower)
        factor = weight * returns * mask * scale
    # A masked token with log-probability -inf must not turn the sum into nan.
    terms = torch.where(factor == 0, torch.zeros_like(logprobs), factor * logprobs)
    return LossTerms(-terms.sum(), ratio, weight, mask)
