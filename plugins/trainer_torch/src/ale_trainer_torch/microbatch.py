"""How a packed batch is cut into padded micro-batches.

Trajectories are sorted by their longest sequence and filled greedily, up to a token budget and as long as the
shortest row is not much shorter than the longest, so that little is padding. The sequences of one trajectory stay
together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ale.specs.trainer import TrainBatch

LIKE_LENGTHS = 0.8
"""Least ratio of the shortest to the longest trajectory of a micro-batch."""


@dataclass(frozen=True)
class MicroBatch:
    """Some sequences of a batch as a padded matrix.

    `tokens` [B, T] is right-padded with 0; `source` [B, T] is each position's index in the packed batch, -1 for padding.
    """

    tokens: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]


def cut(batch: TrainBatch, max_tokens: int) -> list[MicroBatch]:
    """Micro-batches of at most `max_tokens` padded positions (one trajectory may exceed it alone)."""
    starts = np.concatenate([[0], np.cumsum(batch.lengths)[:-1]])
    groups: dict[int, list[int]] = {}
    for sequence, trajectory in enumerate(batch.trajectory.tolist()):
        groups.setdefault(trajectory, []).append(sequence)
    ordered = sorted(groups.values(), key=lambda g: max(int(batch.lengths[s]) for s in g))
    cuts: list[list[int]] = []
    for group in ordered:
        longest = max(int(batch.lengths[s]) for s in group)
        fits = cuts and (len(cuts[-1]) + len(group)) * longest <= max_tokens
        if fits and int(batch.lengths[cuts[-1][0]]) >= LIKE_LENGTHS * longest:
            cuts[-1].extend(group)
        else:
            cuts.append(list(group))
    return [_pad(batch, starts, rows) for rows in cuts]


def _pad(batch: TrainBatch, starts: npt.NDArray[np.int64], rows: list[int]) -> MicroBatch:
    lengths = batch.lengths[rows]
    width = int(lengths.max())
    offsets = np.arange(width)[None, :]
    source = np.where(offsets < lengths[:, None], starts[rows][:, None] + offsets, -1)
    tokens = np.where(source >= 0, batch.token_ids[np.maximum(source, 0)], 0)
    return MicroBatch(tokens, lengths, source)


def padding_waste(cuts: list[MicroBatch]) -> float:
    """Share of computed positions that were padding."""
    computed = sum(c.tokens.size for c in cuts)
    return 1.0 - sum(int(c.lengths.sum()) for c in cuts) / computed if computed else 0.0
