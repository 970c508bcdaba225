"""How far engine and trainer differ, against a slow loop written from the equations."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.specs.trainer import ChunkTable, TrainBatch
from ale_train.batches.mismatch import compare_logprobs, mismatch_metrics

OWN = 3
LOGPROB = st.floats(-30, 0, width=32)
TOKEN = st.tuples(st.integers(-1, 4), st.sampled_from([OWN, OWN, 2, -1]), LOGPROB, LOGPROB)
"""Row of its chunk (-1 without loss), version that sampled it, log-probability of trainer and engine."""
Token = tuple[int, int, float, float]
PLACES = ("0-127", "128-255", "256-511")
CHUNKS = ("1", "2-3", "4-7", "8-15")


def batch_of(sequences: list[list[Token]]) -> tuple[TrainBatch, np.ndarray]:
    """Pack sequences whose chunks are rows 0 to 4 of one table, which stand at positions 0, 2, 4, 6, 8."""
    tokens = [token for sequence in sequences for token in sequence]
    rows, versions, trainer, engine = (np.array(column) for column in zip(*tokens, strict=True))
    five = np.arange(5)
    table = ChunkTable(0 * five, 2 * five, 9 + 0 * five, np.ones(5, np.float32), np.ones(5, np.bool_))
    lengths = np.array([len(sequence) for sequence in sequences])
    ids = np.zeros(len(tokens), np.int64)
    batch = TrainBatch(ids, lengths, 0 * lengths, rows, engine.astype(np.float32), table, 1.0, versions=versions)
    return batch, trainer.astype(np.float32)


def percentile(values: list[float], p: float) -> float:
    """The value at `p` percent of the way from the smallest to the largest, between neighbours in a straight line."""
    ordered = sorted(values)
    at = p / 100 * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def name_of(number: int, ranges: tuple[str, ...]) -> str:
    """The name of the range that the number is in."""
    return next(r for r in ranges if int(r.split("-")[0]) <= number <= int(r.split("-")[-1]))


@settings(max_examples=150, deadline=None)
@given(
    updates=st.lists(st.lists(st.lists(TOKEN, min_size=1, max_size=6), min_size=1, max_size=3), min_size=1, max_size=3),
    prompt=st.sampled_from([0, 127, 128, 300]),
)
def test_metrics_are_those_of_a_loop_over_the_tokens_of_the_trainers_version(
    updates: list[list[list[Token]]], prompt: int
) -> None:
    before: list[Token] = [(-1, -1, 0.0, 0.0)] * prompt
    updates = [[before + sequence for sequence in sequences] for sequences in updates]
    parts = [compare_logprobs(*batch_of(sequences), OWN) for sequences in updates]
    found = mismatch_metrics(parts)
    nats: list[float] = []
    by: dict[str, list[float]] = {}
    for sequence in (sequence for sequences in updates for sequence in sequences):
        for place, (row, version, trainer, engine) in enumerate(sequence):
            if row < 0 or version != OWN:
                continue
            d = max(-20.0, min(20.0, trainer - engine))
            nats.append(d)
            by.setdefault("mismatch_place/" + name_of(place, PLACES), []).append(abs(d))
            by.setdefault("mismatch_chunk/" + name_of(2 * row + 1, CHUNKS), []).append(abs(d))
    if not nats:
        assert found == {}
        return
    ratios = [math.exp(d) for d in nats]
    expected = {
        "mismatch_tokens": len(nats),
        "mismatch_mean": fmean(map(abs, nats)),
        "mismatch_max": max(map(abs, nats)),
        "mismatch_kl": fmean(math.expm1(d) - d for d in nats),
        "mismatch_effective_samples": sum(ratios) ** 2 / len(ratios) / sum(r * r for r in ratios),
        **{f"mismatch_ratio_p{p:02}": percentile(ratios, p) for p in (1, 5, 50, 95, 99)},
        **{name: fmean(values) for name, values in by.items()},
    }
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_tokens_that_both_hold_impossible_agree_and_one_that_only_one_does_stays_finite() -> None:
    never = -math.inf
    batch, trainer = batch_of([[(0, OWN, never, never), (0, OWN, never, -1.0), (0, OWN, -1.0, never)]])
    assert compare_logprobs(batch, trainer, OWN).nats.tolist() == [0.0, -20.0, 20.0]


def test_the_divergence_of_rounding_errors_is_not_lost_in_rounding() -> None:
    batch, _ = batch_of([[(0, OWN, -1.0, 0.0)] * 4])
    logprobs = np.full(4, 1e-6, np.float32)
    found = mismatch_metrics([compare_logprobs(batch, logprobs, OWN)])
    assert found["mismatch_kl"] == pytest.approx(0.5e-12, rel=1e-3)


def test_a_batch_without_versions_cannot_be_compared() -> None:
    batch, trainer = batch_of([[(0, OWN, -1.0, -2.0)]])
    assert mismatch_metrics([compare_logprobs(replace(batch, versions=None), trainer, OWN)]) == {}
    assert mismatch_metrics([]) == {}
