"""What of a batch the mask leaves, against a loop over its tokens, and against the mask that a loss works out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.specs.trainer import ChunkTable, TrainBatch
from ale_torch.losses import Level
from ale_torch.losses.ratios import mismatch_mask
from ale_torch.losses.segments import segments_of
from ale_torch.losses.token_masks import (
    count_by_trajectory,
    count_units,
    sampled_tokens,
    tokens_with_loss,
    unmasked_tokens,
)

LEVELS: list[Level] = ["token", "chunk", "trajectory"]
CHUNK_OF = [-1, 0, 0, -1, 1, 2, 2, -1, 3, 3, -1]
"""Of each token; chunks 0 and 1 are trajectory 0's, the others trajectory 2's. Trajectory 1 has none."""
OWNER = [0, 0, 2, 2]


def batch_of(gaps: list[float] | None, sampled: list[bool]) -> TrainBatch:
    """A batch whose tokens have these differences between trainer and engine."""
    n, c = len(CHUNK_OF), len(OWNER)
    old = None if gaps is None else np.array(gaps, np.float32)
    table = ChunkTable(
        np.array(OWNER, np.int64),
        np.arange(c),
        np.full(c, 2),
        np.ones(c, np.float32),
        np.ones(c, np.bool_),
        np.array(sampled, np.bool_),
    )
    ids = np.array(CHUNK_OF, np.int64)
    return TrainBatch(
        np.arange(n),
        np.array([n]),
        np.array([0]),
        ids,
        np.zeros(n, np.float32),
        table,
        normalizer=7.0,
        old_logprobs=old,
    )


def unit_of(token: int, level: Level) -> int:
    return {"token": token, "chunk": CHUNK_OF[token], "trajectory": OWNER[CHUNK_OF[token]]}[level]


@settings(max_examples=200, deadline=None)
@given(
    gaps=st.lists(st.sampled_from([-3.0, -0.4, 0.0, 0.4, 3.0, math.inf, -math.inf]), min_size=11, max_size=11),
    sampled=st.lists(st.booleans(), min_size=4, max_size=4),
    level=st.sampled_from(LEVELS),
    unit=st.sampled_from(LEVELS),
    lower=st.sampled_from([None, 0.5]),
)
def test_it_is_what_a_loop_over_tokens_leaves(
    gaps: list[float], sampled: list[bool], level: Level, unit: Level, lower: float | None
) -> None:
    batch = batch_of(gaps, sampled)
    trained = [t for t, c in enumerate(CHUNK_OF) if c >= 0]
    mine = [t for t in trained if sampled[CHUNK_OF[t]]]
    left = [t for t in trained if t not in mine]
    for t in mine:
        members = [gaps[u] for u in mine if unit_of(u, level) == unit_of(t, level)]
        mean = sum(members) / len(members)
        if math.isfinite(mean) and mean <= math.log(1.5) and (lower is None or mean >= math.log(lower)):
            left.append(t)
    kept = unmasked_tokens(batch, level, 1.5, lower)
    assert np.flatnonzero(kept).tolist() == sorted(left)
    assert np.flatnonzero(sampled_tokens(batch)).tolist() == mine
    assert count_units(batch, kept, unit) == len({unit_of(t, unit) for t in left})
    of_each = [sum(OWNER[CHUNK_OF[t]] == owner for t in left) for owner in (0, 2)]
    assert count_by_trajectory(batch, kept) == of_each
    # The loss sees the same in a micro-batch, in single precision.
    ids = torch.tensor([CHUNK_OF[t] for t in mine], dtype=torch.long)
    old = torch.tensor([gaps[t] for t in mine])
    seen = mismatch_mask(old, torch.zeros(len(mine)), segments_of(level, ids, batch.chunks), 1.5, lower)
    assert [t for t, m in zip(mine, seen.tolist(), strict=True) if m] == [t for t in mine if kept[t]]


@pytest.mark.parametrize("level", LEVELS)
def test_without_old_logprobs_nothing_is_masked(level: Level) -> None:
    batch = batch_of(None, [True] * 4)
    assert (unmasked_tokens(batch, level, 1.5) == tokens_with_loss(batch)).all()
    assert [count_units(batch, tokens_with_loss(batch), unit) for unit in LEVELS] == [7, 4, 2]
    assert count_by_trajectory(batch, tokens_with_loss(batch)) == [3, 4]
