"""Anchors, how rollouts are spread over them, and the pointer that rolls back, against slow loops."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_ipa.start_selection import Pointer, anchors, judge, spread

CHOICES = st.sampled_from(["uniform", "random"])


@given(chunks=st.integers(0, 200), count=st.integers(1, 20), choice=CHOICES, seed=st.integers(0, 99))
def test_anchors_are_different_chunks_and_the_first_is_always_among_them(
    chunks: int, count: int, choice: str, seed: int
) -> None:
    found = anchors(chunks, count, choice, random.Random(seed))
    assert found == anchors(chunks, count, choice, random.Random(seed))
    assert found[0] == 0
    assert found == sorted(set(found))
    assert len(found) == max(1, min(chunks, count))
    assert found[-1] <= max(0, chunks - 1)


@given(chunks=st.integers(2, 200), count=st.integers(2, 20))
def test_uniform_anchors_reach_from_the_first_to_the_last_chunk_in_even_steps(chunks: int, count: int) -> None:
    found = anchors(chunks, count, "uniform", random.Random(0))
    assert (found[0], found[-1]) == (0, chunks - 1)
    steps = [b - a for a, b in pairwise(found)]
    assert max(steps) - min(steps) <= 1


def test_random_anchors_reach_every_chunk() -> None:
    drawn = Counter(s for i in range(300) for s in anchors(9, 3, "random", random.Random(i)))
    assert drawn[0] == 300
    assert all(40 < drawn[start] < 120 for start in range(1, 9))


@given(starts=st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True), rollouts=st.integers(1, 40))
def test_rollouts_are_spread_evenly(starts: list[int], rollouts: int) -> None:
    starts.sort()
    counts = Counter(spread(starts, rollouts))
    assert counts.total() == rollouts
    assert max(counts[s] for s in starts) - min(counts[s] for s in starts) <= 1
    assert counts[starts[0]] >= 1


@given(
    chunks=st.integers(1, 6),
    steps=st.lists(st.lists(st.booleans(), max_size=6), max_size=40),
    window=st.integers(1, 5),
    advance_at=st.sampled_from([0.2, 0.5, 0.8, 1.0]),
    fork_drop=st.sampled_from([0.0, 0.3, 0.7]),
)
def test_the_pointer_moves_as_a_slow_loop_says(
    chunks: int, steps: list[list[bool]], window: int, advance_at: float, fork_drop: float
) -> None:
    pointer = Pointer.at_last("e", chunks)
    forks, moves = [], []
    for outcomes in steps:
        judged = judge(pointer, outcomes, window, advance_at, fork_drop)
        pointer = judged.pointer
        if judged.fork:
            forks.append((judged.fork.chunk, judged.fork.before, judged.fork.after))
        if judged.left_at is not None:
            moves.append(pointer.start + 1)
        assert len(pointer.outcomes) <= window
    assert (pointer.start + 1, forks, moves) == slow(chunks, steps, window, advance_at, fork_drop)


def slow(
    chunks: int, steps: list[list[bool]], window: int, advance_at: float, fork_drop: float
) -> tuple[int, list[tuple[int, float, float]], list[int]]:
    """The chunk that the policy makes first (from 1) in the end, crucial chunks, and the chunks that it moved to."""
    k, since, left = chunks, [], None
    forks, moves = [], []
    for outcomes in steps:
        since += outcomes  # all rollouts from chunk k since the pointer came there
        if len(since) < window:
            continue
        if left is not None and len(since) - len(outcomes) < window:  # the first window from k has just come to be
            first = sum(1 for o in since[:window] if o) / window
            if round(left - first, 6) > fork_drop:
                forks.append((k, left, first))
        rate = sum(1 for o in since[len(since) - window :] if o) / window
        if rate >= advance_at and k > 1:
            k, since, left = k - 1, [], rate
            moves.append(k)
    return k, forks, moves


def test_a_drop_between_neighbours_marks_the_chunk_that_the_policy_had_to_make_itself() -> None:
    judged = judge(Pointer.at_last("e", 5), [True] * 4, 4, 0.5, 0.3)
    assert (judged.left_at, judged.fork, judged.pointer.start) == (1.0, None, 3)
    judged = judge(judged.pointer, [True, False], 4, 0.5, 0.3)
    assert (judged.left_at, judged.fork) == (None, None), "half a window says nothing"
    judged = judge(judged.pointer, [False, False], 4, 0.5, 0.3)
    assert judged.fork is not None
    assert (judged.fork.chunk, judged.fork.before, judged.fork.after) == (4, 1.0, 0.25)
    again = judge(judged.pointer, [False] * 4, 4, 0.5, 0.3)
    assert again.fork is None, "a fork is found once"


def test_the_pointer_stays_at_the_beginning() -> None:
    pointer = Pointer("e", 3, 0)
    for _ in range(5):
        judged = judge(pointer, [True] * 8, 8, 0.5, 0.3)
        pointer = judged.pointer
        assert (pointer.start, judged.left_at) == (0, None)


@given(chunks=st.integers(1, 30), start=st.integers(0, 29), shorter=st.integers(0, 30))
def test_on_a_shorter_expert_no_more_is_left_to_do_than_before(chunks: int, start: int, shorter: int) -> None:
    start, shorter = min(start, chunks - 1), min(shorter, chunks)
    moved = Pointer("e", chunks, start, (True,), 0.5).onto("f", shorter)
    assert (moved.expert, moved.chunks, moved.outcomes, moved.left_at) == ("f", shorter, (), None)
    assert moved.start >= 0
    assert shorter - moved.start == min(shorter, chunks - start)


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_path_of_at_most_one_chunk_has_the_beginning_alone(chunks: int) -> None:
    assert anchors(chunks, 4, "uniform", random.Random(0)) == [0]
    assert Pointer.at_last("e", chunks).start == 0
