"""What an update tells about itself: sums that add up over micro-batches and ranks, and the means from them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ale.specs.trainer import LossInput
from ale_pg.terms import Terms
from ale_policy_loss.ratios import gap

MEANS = {
    "entropy": "entropy_sum",
    "positive": "positive_tokens",
    "masked": "masked_tokens",
    "clipped_low": "clipped_low_tokens",
    "clipped_high": "clipped_high_tokens",
    "kl_old": "kl_sum",
    "engine_gap": "engine_gap_sum",
}
"""Metrics that are a sum over the number of tokens with loss; where a variant has no such sum, it has no such metric."""


@torch.no_grad()
def loss_sums(
    inputs: LossInput, logprobs: Tensor, old: Tensor | None, advantages: Tensor, trajectories: Tensor, terms: Terms
) -> dict[str, Tensor]:
    """The sums of one micro-batch. A trajectory stands in one micro-batch, so trajectories add up too."""
    members = torch.unique(trajectories)
    each = advantages.new_zeros(int(members[-1]) + 1 if len(members) else 0)
    each[trajectories] = advantages
    each = each[members]
    sums = {
        "loss_tokens": logprobs.new_tensor(len(logprobs)),
        "trajectories": logprobs.new_tensor(len(members)),
        "advantage_sum": each.sum(),
        "advantage_square_sum": each.square().sum(),
        "positive_tokens": (advantages > 0).sum(),
        "entropy_sum": inputs.entropy.sum(),
    }
    if terms.mask is not None:
        sums["masked_tokens"] = (1 - terms.mask).sum()
    if terms.low is not None:
        sums["clipped_low_tokens"] = terms.low.sum()
    if terms.high is not None:
        sums["clipped_high_tokens"] = terms.high.sum()
    if terms.ratio is not None and old is not None:
        step = gap(logprobs, old)
        # In double precision: the square of a ratio of e^20 would swallow all others.
        ratio = terms.ratio.double()
        sums |= {
            "ratio_sum": ratio.sum(),
            "ratio_square_sum": ratio.square().sum(),
            # Never negative and of low variance: exp(d) - 1 - d with d = log pi - log pi_old on samples of pi_old.
            "kl_sum": (step.exp() - 1 - step).sum(),
            "engine_gap_sum": gap(old, inputs.engine_logprobs).abs().sum(),
        }
    return sums


def loss_metrics(totals: Mapping[str, float]) -> dict[str, float]:
    """Readable metrics from the totals of an update; what is not from `loss_sums` stays as it is."""
    out = dict(totals)
    tokens = max(1.0, out.get("loss_tokens", 0.0))
    for name, source in MEANS.items():
        if source in out:
            out[name] = out.pop(source) / tokens
    if "advantage_sum" in out:
        count = max(1.0, out["trajectories"])
        out["advantage"], out["advantage_std"] = _mean_and_deviation(
            out.pop("advantage_sum"), out.pop("advantage_square_sum"), count
        )
    if "ratio_sum" in out:
        total, squares = out.pop("ratio_sum"), out.pop("ratio_square_sum")
        out["ratio"], out["ratio_std"] = _mean_and_deviation(total, squares, tokens)
        out["effective_samples"] = total * total / (squares * tokens) if squares > 0 else 0.0
    return out


def _mean_and_deviation(total: float, squares: float, count: float) -> tuple[float, float]:
    mean = total / count
    return mean, max(0.0, squares / count - mean * mean) ** 0.5
