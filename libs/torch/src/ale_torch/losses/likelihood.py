"""The weighted log-likelihood of tokens, to which every policy gradient with detached ratios reduces."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_likelihood(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Compute `- sum_t weights_t logprobs_t`, both [M]; a token of log-probability -inf has no gradient and adds 0."""
    counts = torch.isfinite(logprobs) & (weights != 0)
    return -torch.where(counts, weights * logprobs, torch.zeros_like(logprobs)).sum()
