"""What an update of IPA tells about itself: sums that add up over micro-batches and ranks, and the means from them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ale.specs.trainer import LossInput
from ale_ipa.loss import LossTerms
from ale_policy_loss.ratios import gap

MEANS = {
    "entropy": "entropy_sum",
    "positive": "positive_tokens",
    "masked": "masked_tokens",
    "ratio": "ratio_sum",
    "kl_old": "kl_sum",
    "engine_gap": "engine_gap_sum",
}
"""Metrics that are a sum over the number of tokens with loss."""


@torch.no_grad()
def loss_sums(inputs: LossInput, old: Tensor, positive: Tensor, terms: LossTerms) -> dict[str, Tensor]:
    """The sums of one micro-batch. A chunk lies in one micro-batch, so chunks add up too."""
    logprobs, ids = inputs.logprobs, inputs.chunk_ids
    step = gap(logprobs, old)
    ratio = terms.ratio
    return {
        "loss_tokens": ratio.new_tensor(len(ratio)),
        "chunks": ratio.new_tensor(len(torch.unique(ids))),
        "masked_chunks": ratio.new_tensor(len(torch.unique(ids[terms.mask == 0]))),
        "masked_tokens": (1 - terms.mask).sum(),
        "positive_tokens": positive.sum(),
        "clipped_tokens": ((ratio > 1) & ~positive).sum(),
        "entropy_sum": inputs.entropy.sum(),
        "ratio_sum": ratio.sum(),
        "ratio_square_sum": ratio.square().sum(),
        # Never negative and of low variance: exp(d) - 1 - d with d = log pi - log pi_old on samples of pi_old.
        "kl_sum": (step.exp() - 1 - step).sum(),
        "engine_gap_sum": gap(old, inputs.engine_logprobs).abs().sum(),
    }


def loss_metrics(totals: Mapping[str, float]) -> dict[str, float]:
    """Readable metrics from the totals of an update; what is not from `loss_sums` stays as it is."""
    out = dict(totals)
    tokens = max(1.0, out.get("loss_tokens", 0.0))
    negative = max(1.0, out.get("loss_tokens", 0.0) - out.get("positive_tokens", 0.0))
    square = out.pop("ratio_square_sum", 0.0) / tokens
    out["clipped"] = out.pop("clipped_tokens", 0.0) / negative
    out["masked_chunks"] = out.get("masked_chunks", 0.0) / max(1.0, out.get("chunks", 0.0))
    for name, source in MEANS.items():
        out[name] = out.pop(source, 0.0) / tokens
    if "il_nll_sum" in out:
        out["il_loss"] = out.pop("il_nll_sum") / max(1.0, out["il_tokens"])
    out["ratio_std"] = max(0.0, square - out["ratio"] ** 2) ** 0.5
    return out
