"""Computes the metrics of an IPA update: sums over micro-batches and ranks, and the means made of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ale.specs.trainer import LossInput
from ale_ipa.policy_loss import LossTerms
from ale_torch.losses.metrics import common_metrics, ratio_sums, side_sums
from ale_torch.losses.segments import segments_of


@torch.no_grad()
def loss_sums(inputs: LossInput, old: Tensor, positive: Tensor, terms: LossTerms) -> dict[str, Tensor]:
    """Return the sums of a micro-batch. No trajectory is split, so the numbers of trajectories and chunks add up."""
    ids, ratio = inputs.chunk_ids, terms.ratio
    trajectories = segments_of("trajectory", ids, inputs.chunks)
    return {
        "loss_tokens": ratio.new_tensor(len(ratio)),
        "loss_chunks": ratio.new_tensor(len(torch.unique(ids))),
        "masked_chunks": ratio.new_tensor(len(torch.unique(ids[terms.mask == 0]))),
        "masked_tokens": (1 - terms.mask).sum(),
        "clipped_tokens": ((ratio > 1) & ~positive).sum(),
        "entropy_sum": inputs.entropy.double().sum(),
        **side_sums(positive, ~positive, trajectories),
        **ratio_sums(ratio, inputs.logprobs, old),
    }


def loss_metrics(totals: Mapping[str, float]) -> dict[str, float]:
    """Compute the metrics from the totals of an update; totals that are not from `loss_sums` stay as they are."""
    out = dict(totals)
    tokens = max(1.0, out.get("loss_tokens", 0.0))
    out["clipped"] = out.pop("clipped_tokens", 0.0) / max(1.0, out.get("negative_tokens", 0.0))
    out["masked_chunks"] = out.get("masked_chunks", 0.0) / max(1.0, out.get("loss_chunks", 0.0))
    out["masked"] = out.pop("masked_tokens", 0.0) / tokens
    if "il_nll_sum" in out:
        out["il_loss"] = out.pop("il_nll_sum") / max(1.0, out["il_tokens"])
    return common_metrics(out)
