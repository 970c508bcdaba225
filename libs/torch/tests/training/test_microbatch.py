"""Cutting: budget, togetherness, completeness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.specs.trainer import ChunkTable, TrainBatch
from ale_torch.training.microbatch import cut, padding_waste


def batch_of(lengths: list[list[int]]) -> TrainBatch:
    """One trajectory a list; every token but the first of a sequence carries loss."""
    flat = [n for trajectory in lengths for n in trajectory]
    owners = [t for t, trajectory in enumerate(lengths) for _ in trajectory]
    ids = np.concatenate([np.full(n, s) for s, n in enumerate(flat)])
    zeros = np.zeros(len(flat), np.int64)
    table = ChunkTable(np.array(owners), zeros, zeros, zeros.astype(np.float32), zeros > 0)
    n = sum(flat)
    return TrainBatch(np.arange(1, n + 1), np.array(flat), np.array(owners), ids, np.zeros(n, np.float32), table, 1.0)


SHAPES = st.lists(st.lists(st.integers(2, 30), min_size=1, max_size=3), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(lengths=SHAPES, budget=st.integers(1, 120), end_to_end=st.booleans(), ranks=st.integers(1, 4))
def test_every_token_is_computed_once_at_its_place(
    lengths: list[list[int]], budget: int, end_to_end: bool, ranks: int
) -> None:
    batch = batch_of(lengths)
    parts = [p for share in cut(batch, budget, end_to_end=end_to_end, ranks=ranks) for g in share for p in g]
    real = np.concatenate([p.source[p.source >= 0] for p in parts])
    assert sorted(real.tolist()) == list(range(len(batch.token_ids)))
    for p in parts:
        assert (p.tokens[p.source >= 0] == batch.token_ids[p.source[p.source >= 0]]).all()
        assert not p.wanted[:, 0].any()
        assert not p.wanted[p.source < 0].any()
    assert sum(len(p.index) for p in parts) == len(batch.token_ids) - len(batch.lengths)


@settings(max_examples=100, deadline=None)
@given(lengths=SHAPES, budget=st.integers(1, 120), end_to_end=st.booleans(), ranks=st.integers(1, 4))
def test_trajectories_stay_together_and_no_micro_batch_of_two_sequences_exceeds_the_budget(
    lengths: list[list[int]], budget: int, end_to_end: bool, ranks: int
) -> None:
    batch = batch_of(lengths)
    owner = np.repeat(batch.trajectory, batch.lengths)
    seen: set[int] = set()
    for group in (g for share in cut(batch, budget, end_to_end=end_to_end, ranks=ranks) for g in share):
        trajectories = {t for p in group for t in owner[p.source[p.source >= 0]].tolist()}
        assert not trajectories & seen
        seen |= trajectories
        assert len(group) == 1 or len(trajectories) == 1
        assert all(p.tokens.size <= budget or len(p.tokens) == 1 for p in group)
        if end_to_end:
            assert all(p.tokens.size <= budget or (p.lengths is not None and len(p.lengths) == 1) for p in group)


@settings(max_examples=100, deadline=None)
@given(lengths=SHAPES, budget=st.integers(1, 120))
def test_end_to_end_nothing_is_padding_and_rows_are_at_least_half_full(lengths: list[list[int]], budget: int) -> None:
    batch = batch_of(lengths)
    [share] = cut(batch, budget, end_to_end=True)
    parts = [p for group in share for p in group]
    assert padding_waste(parts) == 0.0
    for p in parts:
        assert p.lengths is not None
        assert sum(p.lengths) == p.tokens.size
        starts = np.cumsum([0, *p.lengths[:-1]])
        assert not p.wanted[0, starts].any()
        assert p.wanted.sum() == p.tokens.size - len(p.lengths)
        assert (np.diff(p.source[0]) > 0).all()  # the batch's order
    sizes = sorted(group[0].tokens.size for group in share if len(group) == 1)
    # Else the two least full would have fitted into one.
    assert len(sizes) < 2 or sizes[0] + sizes[1] > budget


@settings(max_examples=100, deadline=None)
@given(lengths=SHAPES, ranks=st.integers(1, 4))
def test_ranks_get_like_shares(lengths: list[list[int]], ranks: int) -> None:
    shares = cut(batch_of(lengths), 40, end_to_end=True, ranks=ranks)
    tokens = [sum(p.tokens.size for group in share for p in group) for share in shares]
    assert len(shares) == ranks
    assert max(tokens) - min(tokens) <= max(map(sum, lengths))


def test_like_lengths_share_a_padded_micro_batch_so_that_little_is_padding() -> None:
    [share] = cut(batch_of([[100], [10], [95], [9], [10]]), 10_000, end_to_end=False)
    parts = [p for [p] in share]
    assert [p.tokens.shape for p in parts] == [(3, 10), (2, 100)]
    assert padding_waste(parts) == pytest.approx(6 / 230)
    assert padding_waste([]) == 0.0
