"""How a packed batch is cut into padded micro-batches.

Trajectories are sorted by their longest sequence and filled greedily, up to a token budget and as long as the
shortest trajectory is not much shorter than the longest, so that little is padding. The sequences of one trajectory
stay together. The same batch is always cut the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ale.specs.trainer import TrainBatch

LIKE_LENGTHS = 0.8
"""Least ratio of the shortest to the longest trajectory of a micro-batch."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some sequences of a batch as a padded matrix.

    `tokens` [B, T] is right-padded with 0; `source` [B, T] is the index of each position in the packed batch, -1 for
    padding; `wanted` [B, T] says which tokens carry loss (never one of column 0: nothing stands before it).
    """

    tokens: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.bool_]

    @property
    def index(self) -> npt.NDArray[np.int64]:
        """Where the wanted tokens stand in the packed batch, in row-major order. [M]"""
        picked: npt.NDArray[np.int64] = self.source[self.wanted]
        return picked


def cut(batch: TrainBatch, max_tokens: int) -> list[MicroBatch]:
    """Micro-batches of at most `max_tokens` padded positions (one trajectory may exceed it alone)."""
    starts = np.concatenate([[0], np.cumsum(batch.lengths)[:-1]]).astype(np.int64)
    lengths = batch.lengths.tolist()
    groups: dict[int, list[int]] = {}
    for sequence, trajectory in enumerate(batch.trajectory.tolist()):
        groups.setdefault(trajectory, []).append(sequence)
    cuts: list[list[int]] = []
    shortest = 0
    for longest, group in sorted((max(lengths[s] for s in g), g) for g in groups.values()):
        fits = cuts and (len(cuts[-1]) + len(group)) * longest <= max_tokens
        if fits and shortest >= LIKE_LENGTHS * longest:
            cuts[-1].extend(group)
        else:
            cuts.append(list(group))
            shortest = longest
    return [_pad(batch, starts, rows) for rows in cuts]


def padding_waste(parts: list[MicroBatch]) -> float:
    """Share of the positions of all micro-batches that is padding."""
    computed = sum(p.tokens.size for p in parts)
    return sum(int((p.source < 0).sum()) for p in parts) / computed if computed else 0.0


def _pad(batch: TrainBatch, starts: npt.NDArray[np.int64], rows: list[int]) -> MicroBatch:
    lengths = batch.lengths[rows]
    offsets = np.arange(int(lengths.max()))[None, :]
    real = offsets < lengths[:, None]
    source = np.where(real, starts[rows][:, None] + offsets, -1)
    tokens = np.where(real, batch.token_ids[np.maximum(source, 0)], 0)
    wanted = real & (batch.chunk_ids[np.maximum(source, 0)] >= 0)
    wanted[:, 0] = False
    return MicroBatch(tokens, source, wanted)
