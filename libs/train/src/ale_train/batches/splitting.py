"""Splits a batch: a step's batch into one for each update, or the part of some of its trajectories.

What an algorithm computed over a step's rollouts (means, deviations, spread) stays as it is, and each part is
normalized by its own trajectories.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ale.errors import PluginError
from ale.specs.trainer import ChunkTable, TrainBatch, TrajectoryTable

Number = TypeVar("Number", np.float32, np.int64)


def split(batch: TrainBatch, parts: int, seed: int) -> list[TrainBatch]:
    """Cut a step's batch into at most `parts` batches of whole groups, one for each update.

    Groups are distributed in an order that `seed` shuffles; a part without loss is left out. Each part's
    normalizer comes from its own trajectories, so each update is a mean over its own rollouts. Raises `PluginError`
    for a batch without a table of its trajectories."""
    table = batch.trajectories
    if table is None:
        if parts == 1:
            return [batch]
        raise PluginError(
            "The algorithm's batch has no TrainBatch.trajectories, so it cannot be cut into rl.updates_per_step "
            "updates; make it with ale_train.batches.pack, or set rl.updates_per_step to 1."
        )
    members: dict[int, list[int]] = {}
    for number, group in enumerate(table.group.tolist()):
        members.setdefault(group, []).append(number)
    order = list(members)
    random.Random(seed).shuffle(order)
    dealt: list[list[int]] = [[] for _ in range(min(parts, len(order)))]
    for i, group in enumerate(order):
        dealt[i % len(dealt)].extend(members[group])
    # Proportionally, because an algorithm may have scaled the normalizer of `pack`.
    unit = batch.normalizer / (float(table.weight.sum()) or 1.0)
    out = []
    for numbers in dealt:
        part = select(batch, numbers)
        if len(part.lengths):
            out.append(replace(part, normalizer=unit * float(table.weight[numbers].sum()) or 1.0))
    return out


def select(batch: TrainBatch, trajectories: Sequence[int]) -> TrainBatch:
    """Select trajectories of a batch, in this order, with the whole batch's normalizers, such as for one rank."""
    ends = np.cumsum(batch.lengths)
    of_each = [np.flatnonzero(batch.trajectory == number) for number in trajectories]
    sequences = np.concatenate([np.zeros(0, np.int64), *of_each])
    places = [np.arange(ends[s] - batch.lengths[s], ends[s]) for s in sequences]
    at = np.concatenate([np.zeros(0, np.int64), *places])
    owner = np.full(int(max(batch.trajectory.max(), *trajectories, 0)) + 1, -1, dtype=np.int64)
    owner[list(trajectories)] = np.arange(len(trajectories))
    rows = np.flatnonzero(owner[batch.chunks.trajectory] >= 0)
    new_row = np.full(len(batch.chunks.returns) + 1, -1, dtype=np.int64)  # index -1 points to the last entry
    new_row[rows] = np.arange(len(rows))
    columns = {f.name: getattr(batch.chunks, f.name)[rows] for f in fields(ChunkTable)}
    table = batch.trajectories

    def pick(values: npt.NDArray[Number] | None) -> npt.NDArray[Number] | None:
        return None if values is None else values[at]

    return replace(
        batch,
        token_ids=batch.token_ids[at],
        lengths=batch.lengths[sequences],
        trajectory=owner[batch.trajectory[sequences]],
        chunk_ids=new_row[batch.chunk_ids[at]],
        engine_logprobs=batch.engine_logprobs[at],
        chunks=ChunkTable(**{**columns, "trajectory": owner[columns["trajectory"]]}),
        old_logprobs=pick(batch.old_logprobs),
        reference_logprobs=pick(batch.reference_logprobs),
        versions=pick(batch.versions),
        columns={name: column[at] for name, column in batch.columns.items()},
        trajectories=table and TrajectoryTable(table.group[list(trajectories)], table.weight[list(trajectories)]),
    )
