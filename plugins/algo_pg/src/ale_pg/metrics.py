"""Computes the metrics of an update: sums over micro-batches and ranks, and the means made of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ale.specs.trainer import LossInput
from ale_torch.losses.metrics import common_metrics, mean_and_deviation, ratio_sums, side_sums
from ale_torch.losses.policy_gradient import Terms

SHARES = ("masked", "clipped_low", "clipped_high")
"""Each of these metrics is a sum divided by the number of tokens with loss. A variant without such a sum does not have
the metric."""


@torch.no_grad()
def loss_sums(
    inputs: LossInput, logprobs: Tensor, old: Tensor | None, advantages: Tensor, trajectories: Tensor, terms: Terms
) -> dict[str, Tensor]:
    """Return the sums of one micro-batch. No trajectory is split, so the counts of trajectories add up too.

    Sums are in double precision: in single precision, squares of rewards far from 0 would hide how rewards differ.
    """
    _, place, tokens = torch.unique(trajectories, return_inverse=True, return_counts=True)
    advantages = advantages.double()
    each = advantages.new_zeros(len(tokens)).index_add_(0, place, advantages) / tokens
    sums = {
        "loss_tokens": logprobs.new_tensor(len(logprobs)),
        "advantage_sum": each.sum(),
        "advantage_square_sum": each.square().sum(),
        "entropy_sum": inputs.entropy.double().sum(),
        **side_sums(advantages > 0, advantages < 0, trajectories),
    }
    if terms.mask is not None:
        sums["masked_tokens"] = (1 - terms.mask).sum()
    if terms.low is not None:
        sums["clipped_low_tokens"] = terms.low.sum()
    if terms.high is not None:
        sums["clipped_high_tokens"] = terms.high.sum()
    if terms.ratio is not None and old is not None:
        sums |= ratio_sums(terms.ratio, logprobs, old)
    return sums


def loss_metrics(totals: Mapping[str, float]) -> dict[str, float]:
    """Compute the metrics from the totals of an update; totals that are not from `loss_sums` stay as they are."""
    out = dict(totals)
    tokens = max(1.0, out.get("loss_tokens", 0.0))
    for name in SHARES:
        if f"{name}_tokens" in out:
            out[name] = out.pop(f"{name}_tokens") / tokens
    if "advantage_sum" in out:
        out["advantage"], out["advantage_std"] = mean_and_deviation(
            out.pop("advantage_sum"), out.pop("advantage_square_sum"), max(1.0, out["trajectories"])
        )
    return common_metrics(out)
