"""Trajectories become one batch, a step's batch becomes one for each update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.errors import PluginError
from ale.specs.trainer import TrainBatch
from ale.trajectory import Chunk, Sequence, Trajectory
from ale_train.batches import Credit, pack, select, split

Build = Callable[..., Trajectory]


@pytest.fixture(scope="module")
def build() -> Build:
    """Makes a trajectory of a group from the lengths of its chunks, row by row; tokens tell whose they are."""

    def make(number: int, group: str, rows: list[list[int]]) -> Trajectory:
        sequences, chunks = [], []
        for s, lengths in enumerate(rows):
            at = 2
            for n in lengths:
                logprobs = tuple(-float(number + 1) for _ in range(n))
                chunks.append(Chunk(len(chunks), s, at, at + n, logprobs, (0,) * n, "stop"))
                at += n + 1
            sequences.append(Sequence(tuple(100 * number + 10 * s + k for k in range(at)), ()))
        name = f"t{number}"
        return Trajectory(name, "task", "train", "rl", 1, group, 0, 0, tuple(sequences), tuple(chunks))

    return make


ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=2)


@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.sampled_from("abcd"), ROWS, st.booleans()), min_size=1, max_size=8),
    parts=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_parts_are_whole_groups_lose_nothing_and_have_their_own_share_of_the_normalizer(
    build: Build, shapes: list[tuple[str, list[list[int]], bool]], parts: int, seed: int
) -> None:
    done = [build(i, group, rows) for i, (group, rows, _) in enumerate(shapes)]
    packed = {t.id: keep for t, (_, _, keep) in zip(done, shapes, strict=True)}
    tokens = {t.id: sum(map(len, t.chunks)) for t in done}
    batch = pack(
        done,
        lambda t, chunk, position, count: Credit(float(t.id[1:]) + 0.1 * position, True) if packed[t.id] else None,
        lambda t, chunks, trained: float(tokens[t.id]),
    )
    if batch is None:
        assert not any(tokens[t.id] for t in done if packed[t.id])
        return
    assert batch.normalizer == sum(tokens.values())
    pieces = split(batch, parts, seed)
    assert len(pieces) <= min(parts, len({group for group, _, _ in shapes}))
    assert sorted(row for piece in pieces for row in rows_of(piece)) == sorted(rows_of(batch))
    groups: list[set[str]] = []
    names = list(dict.fromkeys(group for group, _, _ in shapes))
    for piece in pieces:
        assert piece.trajectories is not None
        groups.append({names[g] for g in piece.trajectories.group})
        mine = [t for t in done if t.group in groups[-1]]
        assert piece.normalizer == (sum(tokens[t.id] for t in mine) or 1)
        assert len(piece.trajectories.group) == len(mine) > piece.trajectory.max()
        assert (np.diff(piece.trajectory) >= 0).all()
        assert (piece.chunks.trajectory[piece.chunk_ids[piece.chunk_ids >= 0]]).max() < len(mine)
        assert {len(getattr(piece.chunks, f.name)) for f in fields(piece.chunks)} == {len(piece.chunks.returns)}
    assert sum(map(len, groups)) == len(set().union(*groups)), "a group is in one part"
    left_out = [t for t in done if t.group not in set().union(*groups)]
    assert not any(tokens[t.id] for t in left_out if packed[t.id])


def rows_of(batch: TrainBatch) -> list[tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]]:
    """Of each sequence: its tokens, the return of each (-1 without), the engine's log-probabilities."""
    returns = np.where(batch.chunk_ids >= 0, batch.chunks.returns[batch.chunk_ids], -1.0)
    cuts = np.cumsum(batch.lengths)[:-1]
    columns = (np.split(values, cuts) for values in (batch.token_ids, returns, batch.engine_logprobs))
    return [tuple(tuple(x.tolist()) for x in row) for row in zip(*columns, strict=True)]  # type: ignore[misc]


def some_batch(build: Build) -> TrainBatch:
    done = [build(i, "ab"[i % 2], [[1, 2], [1]]) for i in range(4)]
    batch = pack(done, lambda *_: Credit(1.0, True), metrics={"found": 2.0})
    assert batch is not None
    return batch


def test_a_ranks_share_is_under_the_normalizers_of_the_whole(build: Build) -> None:
    batch = some_batch(build)
    n = len(batch.token_ids)
    batch = replace(
        batch, old_logprobs=np.arange(n, dtype=np.float32), versions=np.arange(n) + 5, reference_normalizer=3.0
    )
    share = select(batch, [3, 1])
    assert (share.normalizer, share.reference_normalizer) == (batch.normalizer, 3.0)
    assert share.trajectory.tolist() == [0, 0, 1, 1]
    assert share.token_ids[0] == 300
    assert share.old_logprobs is not None
    assert share.old_logprobs.tolist() == [*range(3 * n // 4, n), *range(n // 4, n // 2)]
    assert share.versions is not None
    assert share.versions.tolist() == (share.old_logprobs + 5).tolist()
    assert select(batch, []).lengths.tolist() == []


def test_each_sampled_token_has_its_version_and_the_others_have_none(build: Build) -> None:
    (done,) = [build(0, "a", [[2, 1, 1]])]
    first, second, third = done.chunks
    chunks = (
        replace(first, versions=(3, 4)),
        replace(second, sampled=False, logprobs=(), versions=()),
        replace(third, versions=(5,)),
    )
    batch = pack([replace(done, chunks=chunks)], lambda *_: Credit(1.0, True))
    assert batch is not None
    assert batch.versions is not None
    assert batch.versions.tolist() == [-1, -1, 3, 4, -1, -1, -1, 5]


def test_a_scaled_normalizer_stays_scaled_and_metrics_stay_with_every_part(build: Build) -> None:
    batch = some_batch(build)
    parts = split(replace(batch, normalizer=10 * batch.normalizer), 2, seed=0)
    assert [part.normalizer for part in parts] == [5 * batch.normalizer] * 2
    assert [part.metrics for part in parts] == [{"found": 2.0}] * 2


def test_a_batch_that_was_not_packed_here_is_one_update_or_a_sentence(build: Build) -> None:
    batch = replace(some_batch(build), trajectories=None)
    assert split(batch, 1, seed=0) == [batch]
    with pytest.raises(PluginError, match=r"make it with ale_train.batches\.pack"):
        split(batch, 2, seed=0)
