"""Cuts a packed batch into micro-batches of at most `max_tokens` positions.

If the model can take sequences end to end, a micro-batch is one row without padding, and trajectories are put into rows
first-fit, the longest first. If not, a micro-batch is a padded matrix: trajectories are sorted by their longest
sequence and added greedily, as long as the shortest is not much shorter than the longest. The sequences of one
trajectory stay together. The same batch is always cut the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ale.specs.trainer import TrainBatch

LIKE_LENGTHS = 0.8
"""Least ratio of the shortest to the longest trajectory of a padded micro-batch."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some sequences of a batch.

    `tokens` [B, T] is right-padded with 0, or with `lengths` one row of sequences of these lengths end to end;
    `source` [B, T] is the index of each position in the packed batch, -1 for padding; `wanted` [B, T] says which tokens
    carry loss (never the first of a sequence, because no token precedes it).
    """

    tokens: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.bool_]
    lengths: list[int] | None = None

    @property
    def index(self) -> npt.NDArray[np.int64]:
        """Return the indices of the wanted tokens in the packed batch, in row-major order. [M]"""
        picked: npt.NDArray[np.int64] = self.source[self.wanted]
        return picked


def cut(batch: TrainBatch, max_tokens: int, *, end_to_end: bool) -> list[MicroBatch]:
    """Cut a batch into micro-batches of at most `max_tokens` positions with padding (a single trajectory may exceed
    it)."""
    starts = np.concatenate([[0], np.cumsum(batch.lengths)[:-1]]).astype(np.int64)
    lengths = batch.lengths.tolist()
    groups: dict[int, list[int]] = {}
    for sequence, trajectory in enumerate(batch.trajectory.tolist()):
        groups.setdefault(trajectory, []).append(sequence)
    if end_to_end:
        return [_line_up(batch, starts, rows) for rows in _first_fit(list(groups.values()), lengths, max_tokens)]
    return [_pad(batch, starts, rows) for rows in _like_lengths(list(groups.values()), lengths, max_tokens)]


def padding_waste(parts: list[MicroBatch]) -> float:
    """Compute the share of padding in all positions of the micro-batches."""
    computed = sum(p.tokens.size for p in parts)
    return sum(int((p.source < 0).sum()) for p in parts) / computed if computed else 0.0


def _first_fit(groups: list[list[int]], lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Put each group of sequences, the longest first, into the first row where it fits; rows keep the batch's order."""
    rows: list[list[int]] = []
    room: list[int] = []
    for size, group in sorted(((sum(lengths[s] for s in g), g) for g in groups), key=lambda sized: -sized[0]):
        row = next((i for i, left in enumerate(room) if size <= left), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(max_tokens)
        rows[row].extend(group)
        room[row] -= size
    return [sorted(row) for row in rows]


def _like_lengths(groups: list[list[int]], lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Put groups of sequences into matrices that need little padding; return their rows."""
    cuts: list[list[int]] = []
    shortest = 0
    for longest, group in sorted((max(lengths[s] for s in g), g) for g in groups):
        fits = cuts and (len(cuts[-1]) + len(group)) * longest <= max_tokens
        if fits and shortest >= LIKE_LENGTHS * longest:
            cuts[-1].extend(group)
        else:
            cuts.append(list(group))
            shortest = longest
    return cuts


def _line_up(batch: TrainBatch, starts: npt.NDArray[np.int64], rows: list[int]) -> MicroBatch:
    lengths = batch.lengths[rows]
    source = np.concatenate([np.arange(starts[r], starts[r] + batch.lengths[r]) for r in rows])
    wanted = batch.chunk_ids[source] >= 0
    wanted[np.cumsum(lengths) - lengths] = False
    return MicroBatch(batch.token_ids[source][None], source[None], wanted[None], lengths.tolist())


def _pad(batch: TrainBatch, starts: npt.NDArray[np.int64], rows: list[int]) -> MicroBatch:
    lengths = batch.lengths[rows]
    offsets = np.arange(int(lengths.max()))[None, :]
    real = offsets < lengths[:, None]
    source = np.where(real, starts[rows][:, None] + offsets, -1)
    tokens = np.where(real, batch.token_ids[np.maximum(source, 0)], 0)
    wanted = real & (batch.chunk_ids[np.maximum(source, 0)] >= 0)
    wanted[:, 0] = False
    return MicroBatch(tokens, source, wanted)
