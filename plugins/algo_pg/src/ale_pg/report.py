"""What an update tells about itself: sums that add up over micro-batches and ranks, and the means from them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ale.specs.trainer import LossInput
from ale_pg.terms import Terms
from ale_policy_loss.report import common_metrics, mean_and_deviation, ratio_sums, side_sums

SHARES = ("masked", "clipped_low", "clipped_high")
"""Metrics that are a sum over the number of tokens with loss; where a variant has no such sum, it has no such metric."""


@torch.no_grad()
def loss_sums(
    inputs: LossInput, logprobs: Tensor, old: Tensor | None, advantages: Tensor, trajectories: Tensor, terms: Terms
) -> dict[str, Tensor]:
    """The sums of one micro-batch. A trajectory stands in one micro-batch, so trajectories add up too.

    In double precision: squares of rewards far from 0 would swallow their spread in single precision.
    """
    members = torch.unique(trajectories)
    advantages = advantages.double()
    each = advantages.new_zeros(int(members[-1]) + 1 if len(members) else 0)
    each[trajectories] = advantages
    each = each[members]
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
        sums |= ratio_sums(terms.ratio, logprobs, old, inputs.engine_logprobs)
    return sums


def loss_metrics(totals: Mapping[str, float]) -> dict[str, float]:
    """Readable metrics from the totals of an update; what is not from `loss_sums` stays as it is."""
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
