"""Packs trajectories into one `TrainBatch`.

`pack` is the one place where chunks become rows and masks. An algorithm gives each chunk its credit (`Credit`), or None
for no loss; everything outside chunks (prompts, tool output, template text) carries no loss either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ale.specs.trainer import ChunkTable, TrainBatch, TrajectoryTable
from ale.trajectory import Chunk, Trajectory


@dataclass(frozen=True, slots=True)
class Credit:
    """The credit of a chunk: its return `G_c`, and whether it belongs to `T+`."""

    value: float
    positive: bool


CreditFunction = Callable[[Trajectory, Chunk, int, int], Credit | None]
"""(trajectory, chunk, position among the trajectory's chunks, number of chunks) -> its credit."""
WeightFunction = Callable[[Trajectory, int, int], float]
"""(trajectory, number of its chunks with loss, number of its tokens with loss) -> what it adds to the normalizer."""


def count_tokens(trajectory: Trajectory, chunks: int, tokens: int) -> float:
    """Weight a trajectory by its tokens with loss, so that the loss is a mean over these."""
    return float(tokens)


def pack(
    trajectories: Sequence[Trajectory],
    credit: CreditFunction,
    weight: WeightFunction = count_tokens,
    metrics: Mapping[str, float] | None = None,
) -> TrainBatch | None:
    """Pack the chunks with loss; return None if there are none.

    Sequences without a trained chunk are left out. The normalizer is the sum of the trajectories' weights, or 1 where
    nothing counts. Positions count every chunk of the trajectory except side calls, even those without loss: masking a
    chunk does not change how far the others are from the end. `metrics` are those of the batch."""
    tokens: list[int] = []
    lengths: list[int] = []
    owners: list[int] = []
    chunk_ids: list[np.ndarray] = []
    engine: list[np.ndarray] = []
    versions: list[np.ndarray] = []
    rows: list[tuple[int, int, int, float, bool, bool]] = []
    weights: list[float] = []
    groups: dict[str, int] = {}
    for number, trajectory in enumerate(trajectories):
        turns = trajectory.turns
        count = len(turns)
        by_sequence: dict[int, list[tuple[Chunk, int]]] = {}
        first_row, trained = len(rows), 0
        for position, chunk in enumerate(turns):
            worth = credit(trajectory, chunk, position, count)
            if worth is None or len(chunk) == 0:
                continue
            by_sequence.setdefault(chunk.sequence, []).append((chunk, len(rows)))
            rows.append((number, position, count, worth.value, worth.positive, chunk.sampled))
            trained += len(chunk)
        weights.append(weight(trajectory, len(rows) - first_row, trained))
        groups.setdefault(trajectory.group, len(groups))
        for sequence, chunks in sorted(by_sequence.items()):
            ids = trajectory.sequences[sequence].token_ids
            # Nothing is learnt after the last trained chunk, so the tail is cut off.
            length = max(chunk.end for chunk, _ in chunks)
            owner = np.full(length, -1, dtype=np.int64)
            logprobs = np.zeros(length, dtype=np.float32)
            sampled_by = np.full(length, -1, dtype=np.int64)
            for chunk, row in chunks:
                owner[chunk.start : chunk.end] = row
                if chunk.logprobs:
                    logprobs[chunk.start : chunk.end] = chunk.logprobs
                if chunk.sampled and chunk.versions:
                    sampled_by[chunk.start : chunk.end] = chunk.versions
            tokens.extend(ids[:length])
            lengths.append(length)
            owners.append(number)
            chunk_ids.append(owner)
            engine.append(logprobs)
            versions.append(sampled_by)
    if not rows:
        return None
    trajectory_, position_, count_, value_, positive_, sampled_ = zip(*rows, strict=True)
    return TrainBatch(
        token_ids=np.array(tokens, dtype=np.int64),
        lengths=np.array(lengths, dtype=np.int64),
        trajectory=np.array(owners, dtype=np.int64),
        chunk_ids=np.concatenate(chunk_ids),
        engine_logprobs=np.concatenate(engine),
        chunks=ChunkTable(
            np.array(trajectory_, dtype=np.int64),
            np.array(position_, dtype=np.int64),
            np.array(count_, dtype=np.int64),
            np.array(value_, dtype=np.float32),
            np.array(positive_, dtype=np.bool_),
            np.array(sampled_, dtype=np.bool_),
        ),
        normalizer=float(sum(weights)) or 1.0,
        trajectories=TrajectoryTable(
            np.array([groups[t.group] for t in trajectories], dtype=np.int64), np.array(weights, dtype=np.float64)
        ),
        versions=np.concatenate(versions),
        metrics=metrics or {},
    )
