"""Cuts a packed batch into the passes of each rank: micro-batches of at most `max_tokens` positions.

1. Trajectories are shared among the ranks, the longest first, each to the rank with the fewest tokens.
2. If the model can take sequences end to end, a micro-batch is one row without padding, and a rank's trajectories are
   put into rows first-fit, the longest first. If not, a micro-batch is a padded matrix: trajectories are sorted by
   their longest sequence and added greedily, as long as the shortest is not much shorter than the longest.
3. The loss sees whole trajectories. One that alone is larger than a micro-batch becomes several of them with one loss:
   a `LossGroup` of more than one. Only a single sequence is never cut.

The same batch is always cut the same way, so each rank knows the passes of all.
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


LossGroup = list[MicroBatch]
"""The micro-batches over which one loss is computed: one, or those of a trajectory that is larger than one."""


def cut(batch: TrainBatch, max_tokens: int, *, end_to_end: bool, ranks: int = 1) -> list[list[LossGroup]]:
    """Cut a batch into micro-batches of at most `max_tokens` positions with padding (a single sequence may exceed it);
    return the groups of each rank. A micro-batch without a token that carries loss is left out."""
    starts = np.concatenate([[0], np.cumsum(batch.lengths)[:-1]]).astype(np.int64)
    lengths = batch.lengths.tolist()
    trajectories: dict[int, list[int]] = {}
    for sequence, owner in enumerate(batch.trajectory.tolist()):
        trajectories.setdefault(owner, []).append(sequence)
    fill, make = (_first_fit, _line_up) if end_to_end else (_like_lengths, _pad)
    shared: list[list[LossGroup]] = []
    for share in _share(list(trajectories.values()), lengths, ranks):
        fits: dict[bool, list[list[int]]] = {True: [], False: []}
        for trajectory in share:
            fits[_positions(trajectory, lengths, end_to_end) <= max_tokens].append(trajectory)
        groups = [[rows] for rows in fill(fits[True], lengths, max_tokens)]
        groups += [_cut_trajectory(t, lengths, max_tokens, end_to_end) for t in fits[False]]
        made = [[make(batch, starts, rows) for rows in group] for group in groups]
        shared.append([kept for group in made if (kept := [part for part in group if part.wanted.any()])])
    return shared


def padding_waste(parts: list[MicroBatch]) -> float:
    """Compute the share of padding in all positions of the micro-batches."""
    computed = sum(p.tokens.size for p in parts)
    return sum(int((p.source < 0).sum()) for p in parts) / computed if computed else 0.0


def _share(trajectories: list[list[int]], lengths: list[int], ranks: int) -> list[list[list[int]]]:
    """Share trajectories among ranks so that all have about the same number of tokens, in the batch's order."""
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for trajectory in sorted(trajectories, key=lambda t: -sum(lengths[s] for s in t)):
        rank = tokens.index(min(tokens))
        shares[rank].append(trajectory)
        tokens[rank] += sum(lengths[s] for s in trajectory)
    return [sorted(share) for share in shares]


def _positions(sequences: list[int], lengths: list[int], end_to_end: bool) -> int:
    """Count the positions of some sequences in a micro-batch of their own."""
    sizes = [lengths[s] for s in sequences]
    return sum(sizes) if end_to_end else len(sizes) * max(sizes)


def _cut_trajectory(sequences: list[int], lengths: list[int], max_tokens: int, end_to_end: bool) -> list[list[int]]:
    """Cut a trajectory between its sequences, which stay in order."""
    rows: list[list[int]] = []
    for sequence in sequences:
        if rows and _positions([*rows[-1], sequence], lengths, end_to_end) <= max_tokens:
            rows[-1].append(sequence)
        else:
            rows.append([sequence])
    return rows


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
