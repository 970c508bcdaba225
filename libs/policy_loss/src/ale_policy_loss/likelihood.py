"""The likelihood of tokens, each with a weight of its own: what every policy gradient whose ratio is no variable comes to."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_likelihood(logprobs: Tensor, weights: Tensor) -> Tensor:
    """`- sum_t weights_t logprobs_t`, both [M]; a token that is impossible now has no gradient to follow and adds nothing."""
    counts = torch.isfinite(logprobs) & (weights != 0)
    return -torch.where(counts, weights * logprobs, torch.zeros_like(logprobs)).sum()
