"""What policy-gradient losses share: the weighted log-likelihood that each is made of, the weights of tokens, and the
result of a loss.

There are M tokens with loss, in any order. `shares` [M] are the tokens' weights in the mean that the loss is; they use
a normalizer of the whole batch, so that micro-batches add up. `trajectories` [M] gives each token's trajectory, which
may have several sequences and is never split over micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ale_torch.losses.segments import segment_mean, segment_sizes


@dataclass(frozen=True, slots=True)
class Terms:
    """`loss` is a scalar; the other fields are per token [M], detached, and None if the variant has no such quantity.

    `ratio` is the importance ratio of the variant's unit. `low` and `high` (bool) mark tokens where a bound cut the
    ratio and so removed or changed its gradient. `mask` is 0 for tokens that were masked.
    """

    loss: Tensor
    ratio: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    mask: Tensor | None = None


def weighted_likelihood(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Compute `- sum_t weights_t logprobs_t`, both [M], to which every policy gradient with detached ratios reduces. A
    token of log-probability -inf has no gradient and adds 0."""
    counts = torch.isfinite(logprobs) & (weights != 0)
    return -torch.where(counts, weights * logprobs, torch.zeros_like(logprobs)).sum()


def even_shares(like: Tensor, normalizer: float) -> Tensor:
    """Return equal weights for all tokens: 1 / Z [M]."""
    return torch.full_like(like, 1.0 / normalizer)


def trajectory_shares(like: Tensor, trajectories: Tensor, normalizer: float, mask: Tensor | None = None) -> Tensor:
    """Return weights that give every trajectory, and each token in it, the same weight: 1 / (Z |tau|) [M].

    With a `mask` [M] of 0 and 1, a trajectory's mean is over its unmasked tokens, and masked tokens have weight 0."""
    if mask is None:
        return 1.0 / (segment_sizes(like.detach(), trajectories) * normalizer)
    left = segment_mean(mask, trajectories) * segment_sizes(mask, trajectories)
    return mask / (left.clamp(min=1) * normalizer)
