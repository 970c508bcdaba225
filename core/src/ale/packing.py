"""Packing: trajectories -> one `TrainBatch`. The one place where chunks become rows and masks.

An algorithm says for each chunk what it is worth (`Credit`), or that it carries no loss (None); everything that is
not such a chunk (prompts, tool output, template text) carries none either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ale.specs.trainer import ChunkTable, TrainBatch
from ale.trajectory import Chunk, Trajectory


@dataclass(frozen=True, slots=True)
class Credit:
    """What a chunk is worth: its return `G_c`, and whether it counts to `T+`."""

    value: float
    positive: bool


CreditFunction = Callable[[Trajectory, Chunk, int, int], Credit | None]
"""(trajectory, chunk, position among the trajectory's chunks, number of chunks) -> its credit."""


def pack(
    trajectories: Sequence[Trajectory], credit: CreditFunction, normalizer: Callable[[ChunkTable, int], float]
) -> TrainBatch | None:
    """Pack what carries loss; None where nothing does.

    Sequences without a trained chunk are left out. `normalizer` gets the chunk table and the number of tokens with
    loss. Positions count every chunk of the trajectory but side calls, also those without loss: masking a chunk does not
    change how far the others are from the end.
    """
    tokens: list[int] = []
    lengths: list[int] = []
    owners: list[int] = []
    chunk_ids: list[np.ndarray] = []
    engine: list[np.ndarray] = []
    rows: list[tuple[int, int, int, float, bool, bool]] = []
    trained = 0
    for number, trajectory in enumerate(trajectories):
        turns = trajectory.turns
        count = len(turns)
        by_sequence: dict[int, list[tuple[Chunk, int]]] = {}
        for position, chunk in enumerate(turns):
            worth = credit(trajectory, chunk, position, count)
            if worth is None or len(chunk) == 0:
                continue
            by_sequence.setdefault(chunk.sequence, []).append((chunk, len(rows)))
            rows.append((number, position, count, worth.value, worth.positive, chunk.sampled))
        for sequence, chunks in sorted(by_sequence.items()):
            ids = trajectory.sequences[sequence].token_ids
            # Behind the last trained chunk nothing is learnt: the tail would only cost time.
            length = max(chunk.end for chunk, _ in chunks)
            owner = np.full(length, -1, dtype=np.int64)
            logprobs = np.zeros(length, dtype=np.float32)
            for chunk, row in chunks:
                owner[chunk.start : chunk.end] = row
                if chunk.logprobs:
                    logprobs[chunk.start : chunk.end] = chunk.logprobs
                trained += len(chunk)
            tokens.extend(ids[:length])
            lengths.append(length)
            owners.append(number)
            chunk_ids.append(owner)
            engine.append(logprobs)
    if not rows:
        return None
    trajectory_, position_, count_, value_, positive_, sampled_ = zip(*rows, strict=True)
    table = ChunkTable(
        np.array(trajectory_, dtype=np.int64), np.array(position_, dtype=np.int64), np.array(count_, dtype=np.int64),
        np.array(value_, dtype=np.float32), np.array(positive_, dtype=np.bool_), np.array(sampled_, dtype=np.bool_),
    )  # fmt: skip
    return TrainBatch(
        token_ids=np.array(tokens, dtype=np.int64),
        lengths=np.array(lengths, dtype=np.int64),
        trajectory=np.array(owners, dtype=np.int64),
        chunk_ids=np.concatenate(chunk_ids),
        engine_logprobs=np.concatenate(engine),
        chunks=table,
        normalizer=normalizer(table, trained),
    )
