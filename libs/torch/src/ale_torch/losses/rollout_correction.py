"""Importance weights and rejection by `rho = pi_old / mu`, for engines that differ from the trainer.

1. `weigh` gives each token the weight by which its loss is multiplied: truncated importance sampling
   (https://fengyao.notion.site/off-policy-rl), or IcePop's mask (Ling Team, 2025, arXiv:2510.18855).
2. `accept` finds the tokens that are not rejected.

Both are computed in double precision from logarithms, which are limited to 20 in either direction; they carry no
gradient. A unit with a token of probability 0 on one side alone has no ratio: its weight is 0, and it is rejected.

Shapes: M tokens with loss, as in `units`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ale.specs.trainer import ChunkTable, ChunkTensors, LossInput
from ale_torch.losses.ratios import LARGEST_LOG_RATIO, difference
from ale_torch.losses.segments import segment_mean, segment_sizes, segments_of
from ale_torch.losses.settings import Correction, RatioUnit


@dataclass(frozen=True, slots=True)
class Corrected:
    """For each token [M], float64: the weight of its loss, and 1, or 0 if it is rejected. `sums` add up over
    micro-batches and ranks; they are there with a correction."""

    weights: Tensor
    accepted: Tensor
    sums: dict[str, Tensor]


@torch.no_grad()
def correct(correction: Correction | None, old: Tensor | None, inputs: LossInput) -> Corrected:
    """Return what a correction does to the tokens of a micro-batch; without one, every token has the weight 1."""
    ones = torch.ones_like(inputs.engine_logprobs, dtype=torch.float64)
    if correction is None or old is None:
        return Corrected(ones, ones, {})

    def ratio(unit: RatioUnit) -> Tensor:
        return unit_ratio(old, inputs.engine_logprobs, unit, inputs.chunk_ids, inputs.chunks)

    accepted = ones if correction.reject is None else accept(ratio(correction.reject_level), correction.reject).double()
    weights, changed = ones, torch.zeros_like(ones)
    if correction.weight != "none":
        rho = ratio(correction.level)
        weights = weigh(rho, correction)
        changed = (weights != rho).double()
    sums = {
        "correction_sum": (weights * accepted).sum(),
        "correction_square_sum": (weights.square() * accepted).sum(),
        "corrected_tokens": (changed * accepted).sum(),
        "accepted_tokens": accepted.sum(),
    }
    return Corrected(weights, accepted, sums)


@torch.no_grad()
def unit_ratio(
    old: Tensor, engine: Tensor, unit: RatioUnit, chunk_ids: Tensor, chunks: ChunkTable | ChunkTensors
) -> Tensor:
    """Return `rho` of each token's unit, nan if it has none. All [M]; float64."""
    segments = segments_of("trajectory" if unit == "sequence" else unit, chunk_ids, chunks)
    log = segment_mean(difference(old.double(), engine.double()), segments)
    if unit == "sequence":
        log = log * segment_sizes(log, segments)
    log = torch.where(torch.isfinite(log), log, torch.nan)
    return log.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def weigh(ratio: Tensor, correction: Correction) -> Tensor:
    """Return the weight of each token from its unit's ratio [M]: `min(rho, cap)`, or with `mask` rho itself where it is
    within 1 / cap and cap, and 0 elsewhere."""
    if correction.weight == "mask":
        within = (ratio >= 1 / correction.cap) & (ratio <= correction.cap)
        return torch.where(within, ratio, torch.zeros_like(ratio))
    return torch.nan_to_num(ratio, nan=0.0).clamp(max=correction.cap)


def accept(ratio: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Return whether each token's unit has a ratio within the bounds. [M] bool"""
    return (ratio >= bounds[0]) & (ratio <= bounds[1])
