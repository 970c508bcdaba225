"""Finds the tokens of a batch that the mismatch mask keeps, for normalizers that do not count masked tokens.

The mask of a unit depends on old log-probabilities, so these must be there. It is computed with the function that the
losses use, over the whole batch of an update: the normalizer is then one number for all micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.specs.trainer import TrainBatch
from ale_torch.losses import Level
from ale_torch.losses.ratios import mismatch_mask
from ale_torch.losses.rollout_correction import accept, unit_ratio
from ale_torch.losses.segments import segments_of
from ale_torch.losses.settings import Correction

Tokens = npt.NDArray[np.bool_]
"""For each token of a batch [N], whether it is selected."""


def tokens_with_loss(batch: TrainBatch) -> Tokens:
    """Select the tokens with loss. [N]"""
    return batch.chunk_ids >= 0


def counted_tokens(batch: TrainBatch) -> Tokens:
    """Select the tokens with loss of the trajectories that the normalizer counts: those with a weight. [N]"""
    counted = tokens_with_loss(batch)
    if batch.trajectories is not None:
        counted[counted] = batch.trajectories.weight[batch.chunks.trajectory[batch.chunk_ids[counted]]] > 0
    return counted


def sampled_tokens(batch: TrainBatch) -> Tokens:
    """Select the tokens with loss that the policy sampled. [N]"""
    sampled = tokens_with_loss(batch)
    sampled[sampled] = batch.chunks.sampled[batch.chunk_ids[sampled]]
    return sampled


def unmasked_tokens(batch: TrainBatch, level: Level, threshold: float, lower: float | None = None) -> Tokens:
    """Select the tokens with loss that the mismatch mask keeps; tokens not sampled by the policy are never masked. [N]

    Without old log-probabilities there is nothing to compare, and no token is masked."""

    def keep(old: Tensor, engine: Tensor, ids: Tensor) -> Tensor:
        return mismatch_mask(old, engine, segments_of(level, ids, batch.chunks), threshold, lower) > 0

    return _compare(batch, keep)


def accepted_tokens(batch: TrainBatch, correction: Correction | None) -> Tokens:
    """Select the tokens with loss that the correction does not reject; tokens not sampled by the policy never are. [N]

    Without old log-probabilities there is nothing to compare, and no token is rejected."""
    if correction is None or correction.reject is None:
        return tokens_with_loss(batch)
    level, bounds = correction.reject_level, correction.reject

    def keep(old: Tensor, engine: Tensor, ids: Tensor) -> Tensor:
        return accept(unit_ratio(old, engine, level, ids, batch.chunks), bounds)

    return _compare(batch, keep)


def _compare(batch: TrainBatch, keep: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tokens:
    """Select the tokens with loss but for those that the policy sampled and `keep` (old and engine's log-probabilities,
    chunk ids -> bool) leaves out. [N]"""
    kept = tokens_with_loss(batch)
    if batch.old_logprobs is not None:
        compared = sampled_tokens(batch)
        columns = (batch.old_logprobs, batch.engine_logprobs, batch.chunk_ids)
        kept[compared] = keep(*(torch.from_numpy(column[compared]) for column in columns)).numpy()
    return kept


def count_units(batch: TrainBatch, tokens: Tokens, unit: Level) -> int:
    """Count these tokens, or the chunks or trajectories that they belong to."""
    ids = batch.chunk_ids[tokens]
    if unit == "token":
        return len(ids)
    return len(np.unique(ids if unit == "chunk" else batch.chunks.trajectory[ids]))


def count_by_trajectory(batch: TrainBatch, tokens: Tokens) -> list[int]:
    """Count these tokens in each trajectory that has a token with loss."""
    owners, all_owners = (batch.chunks.trajectory[batch.chunk_ids[t]] for t in (tokens, tokens_with_loss(batch)))
    counts = np.bincount(owners, minlength=int(all_owners.max(initial=-1)) + 1)
    return [int(n) for n in counts[np.unique(all_owners)]]
