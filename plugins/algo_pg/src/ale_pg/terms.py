"""What all losses here have in common: what a token counts, and what a loss gives back.

Shapes: M tokens with loss, in any order. `shares` [M] is what each token counts in the mean that the loss is; they are
made from a normalizer that was known before, so that micro-batches add up. `trajectories` [M] says whose each token is:
a trajectory may have several sequences, and stands whole in one micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ale_policy_loss.units import segment_sizes


@dataclass(frozen=True, slots=True)
class Terms:
    """`loss` is a scalar; the rest is per token [M], detached, and None where the variant has no such thing.

    `ratio` is that of the unit the variant has ratios for; `low` and `high` (bool) where a bound cut it and so took or
    changed its gradient; `mask` is 0 where a token was left out.
    """

    loss: Tensor
    ratio: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    mask: Tensor | None = None


def even_shares(like: Tensor, normalizer: float) -> Tensor:
    """Every token counts the same: 1 / Z. [M]"""
    return torch.full_like(like, 1.0 / normalizer)


def trajectory_shares(like: Tensor, trajectories: Tensor, normalizer: float) -> Tensor:
    """Every trajectory counts the same, its tokens alike: 1 / (Z |tau|). [M]"""
    return 1.0 / (segment_sizes(like.detach(), trajectories) * normalizer)
