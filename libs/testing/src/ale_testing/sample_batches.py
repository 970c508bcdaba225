"""Tests of trainers and algorithms use these small trajectories and packed batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ale.messages import Message
from ale.specs.trainer import ChunkTable, TrainBatch
from ale.trajectory import Chunk, ChunkError, Failure, Score, Sequence, Trajectory


def trajectory(i: int, *, reward: float, group: str = "g", chunks: int = 2, error: bool = False) -> Trajectory:
    """Prompt of three tokens, then chunks of three tokens with two of the environment's between; ids below 40."""
    tokens: list[int] = [1, 2, 3 + i % 5]
    made: list[Chunk] = []
    for c in range(chunks):
        start = len(tokens)
        tokens += [5 + (7 * i + 3 * c + k) % 30 for k in range(3)]
        logprobs = tuple(-0.5 - 0.1 * ((i + c + k) % 7) for k in range(3))
        problem = ChunkError("illegal_call", "no such tool") if error and c == 0 else None
        made.append(Chunk(c, 0, start, len(tokens), logprobs, (0, 0, 0), "stop", True, problem))
        tokens += [4, 4] if c < chunks - 1 else []
    messages = (Message("user", "Do it."), Message("assistant", "Done."))
    return Trajectory(
        id=f"t{i}",
        task_id=f"task-{group}",
        split="train",
        stage="rl",
        step=1,
        group=group,
        seed=i,
        policy_version=0,
        sequences=(Sequence(tuple(tokens), messages),),
        chunks=tuple(made),
        reward=Score(reward, reward > 0),
    )


def make_unscored(i: int, group: str = "g") -> Trajectory:
    """A rollout whose sandbox was lost: it has no reward, which is not the same as a reward of 0."""
    failure = Failure("sandbox", "The sandbox was lost.", retryable=True)
    return replace(trajectory(i, reward=0.0, group=group), reward=None, failure=failure)


def two_contexts(i: int, *, reward: float, group: str = "g") -> Trajectory:
    """An agent that began a new context: a replayed and a sampled chunk in the first, a sampled one in the second."""
    one, two = trajectory(i, reward=reward, group=group), trajectory(i + 11, reward=reward, group=group, chunks=1)
    replayed = replace(one.chunks[0], sampled=False, logprobs=(), versions=())
    # Not where a chunk of the first context stands: a span means something in its own sequence only.
    third = replace(two.chunks[0], index=2, sequence=1, start=6, end=9)
    second = replace(two.sequences[0], token_ids=(1, 2, 4, 4, 4, 4, *two.sequences[0].token_ids[3:6]))
    return replace(one, id=f"c{i}", sequences=(*one.sequences, second), chunks=(replayed, one.chunks[1], third))


def with_side_call(i: int, *, reward: float, group: str = "g") -> Trajectory:
    """An agent that asked for a title between its two turns: a context of its own, which is no part of the
    conversation."""
    one, title = trajectory(i, reward=reward, group=group), trajectory(i + 7, reward=reward, group=group, chunks=1)
    aside = replace(title.chunks[0], index=1, sequence=1, side=True)
    chunks = (one.chunks[0], aside, replace(one.chunks[1], index=2))
    return replace(one, sequences=(*one.sequences, *title.sequences), chunks=chunks)


def pair_contexts(batch: TrainBatch) -> TrainBatch:
    """The batch with every two sequences as the contexts of one trajectory."""
    of = np.arange(len(batch.lengths), dtype=np.int64) // 2
    return replace(batch, trajectory=of, chunks=replace(batch.chunks, trajectory=of[batch.chunks.trajectory]))


def mixed_group(n: int = 4, group: str = "g") -> list[Trajectory]:
    """Rollouts of one task, every other one a success."""
    return [trajectory(i, reward=float(i % 2), group=group, chunks=1 + i % 3) for i in range(n)]


def two_groups() -> list[Trajectory]:
    """Two tasks, four rollouts each, with and without success; one of several contexts, with a replayed beginning."""
    second = [replace(t, id=f"u{i}", task_id="task-h", group="h") for i, t in enumerate(mixed_group(3))]
    return [*mixed_group(4), *second, two_contexts(9, reward=1.0, group="h")]


def pack_trajectories(trajectories: list[Trajectory], order: list[int] | None = None) -> TrainBatch:
    """Every chunk trained with return 1 (success) or -1, whatever an algorithm would do."""
    chosen = [trajectories[i] for i in order] if order is not None else trajectories
    tokens: list[int] = []
    lengths, owners, ids, logprobs = [], [], [], []
    rows: list[tuple[int, int, int, float, bool]] = []
    for t, item in enumerate(chosen):
        (sequence,) = item.sequences
        chunk_of, logprob_of = [-1] * len(sequence.token_ids), [0.0] * len(sequence.token_ids)
        for chunk in item.chunks:
            for k in range(chunk.start, chunk.end):
                chunk_of[k], logprob_of[k] = len(rows), chunk.logprobs[k - chunk.start]
            rows.append((t, chunk.index, len(item.chunks), 1.0 if item.passed else -1.0, item.passed))
        tokens += sequence.token_ids
        lengths.append(len(sequence.token_ids))
        owners.append(t)
        ids += chunk_of
        logprobs += logprob_of
    owner, position, count, returns, positive = (list(column) for column in zip(*rows, strict=True))
    table = ChunkTable(
        np.array(owner, np.int64),
        np.array(position, np.int64),
        np.array(count, np.int64),
        np.array(returns, np.float32),
        np.array(positive, np.bool_),
    )
    return TrainBatch(
        np.array(tokens, np.int64),
        np.array(lengths, np.int64),
        np.array(owners, np.int64),
        np.array(ids, np.int64),
        np.array(logprobs, np.float32),
        table,
        normalizer=float(sum(i >= 0 for i in ids)),
        old_logprobs=np.array(logprobs, np.float32),
    )
