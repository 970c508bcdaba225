"""Selects where rollouts start on an expert's path (paper, 3.2.4.4), by pure functions.

A *start* is the number of the expert's chunks that are replayed: with 0 a rollout starts at the task's beginning, with
`k - 1` the policy makes chunk `k` first.
- Parallelized initialization: `anchors` chooses several starts, and `spread` divides a group's rollouts among them.
- Sequential rollback: a `Pointer` begins at the last chunk. `judge` moves it one chunk back if the policy succeeds from
  there, and finds the crucial forks on the way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal


def anchors(chunks: int, count: int, choice: Literal["uniform", "random"], rng: random.Random) -> list[int]:
    """Return at most `count` different starts on a path of `chunks` chunks, in ascending order; 0 is always among them.

    `uniform` chooses even distances from the first to the last chunk; `random` draws the other starts from `rng`.
    """
    if chunks <= count:
        return list(range(max(1, chunks)))
    if count == 1:
        return [0]
    if choice == "random":
        return [0, *sorted(rng.sample(range(1, chunks), count - 1))]
    return [i * (chunks - 1) // (count - 1) for i in range(count)]


def spread(starts: list[int], rollouts: int) -> list[int]:
    """Return a start for each rollout. All starts get equally many rollouts; if the number of rollouts does not divide
    evenly, each of the earlier starts gets one more."""
    return sorted(starts[j % len(starts)] for j in range(rollouts))


ROUNDING = 1e-9
"""This tolerance makes a drop from 0.8 to 0.5 count as 0.3 in spite of floating-point rounding."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where rollouts of a task start on the path of `expert`, which has `chunks` chunks."""

    expert: str
    chunks: int
    start: int
    outcomes: tuple[bool, ...] = ()
    """Whether each of the last rollouts from this start passed, the oldest first; at most a window of them."""
    left_at: float | None = None
    """The success rate at which the pointer left the start one chunk later; None after this start's was compared."""

    @classmethod
    def at_last(cls, expert: str, chunks: int) -> Pointer:
        """Return a pointer from which the policy makes only the last chunk."""
        return cls(expert, chunks, max(0, chunks - 1))

    def onto(self, expert: str, chunks: int) -> Pointer:
        """Move to the path of a shorter expert, as many chunks from its end as before, or to its beginning if it has no
        more chunks than that. The success rate is measured again."""
        return Pointer(expert, chunks, max(0, chunks - (self.chunks - self.start)))


@dataclass(frozen=True, slots=True)
class Fork:
    """Chunk `chunk` (from 1) is a crucial fork: the success rate was `before` when the chunk was replayed, and `after`
    when the policy made it."""

    chunk: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """Holds the new pointer, a crucial fork if one was found, and, if the pointer moved, the rate at which it did."""

    pointer: Pointer
    fork: Fork | None = None
    left_at: float | None = None


def judge(pointer: Pointer, outcomes: list[bool], window: int, advance_at: float, fork_drop: float) -> Judgement:
    """Update a pointer by the outcomes of a step's rollouts from its start.

    Nothing is decided before there is a window of outcomes. The first window from a start is compared with the rate at
    which the pointer left the start one chunk later; a drop by more than `fork_drop` is a crucial fork. If the rate of
    the last window is at least `advance_at`, the pointer moves one chunk back, unless it is at the beginning."""
    known = (*pointer.outcomes, *outcomes)
    if len(known) < window:
        return Judgement(replace(pointer, outcomes=known))
    fork = None
    if pointer.left_at is not None:
        first = sum(known[:window]) / window
        if pointer.left_at - first > fork_drop + ROUNDING:
            fork = Fork(pointer.start + 1, pointer.left_at, first)
    rate = sum(known[-window:]) / window
    if pointer.start > 0 and rate >= advance_at:
        return Judgement(Pointer(pointer.expert, pointer.chunks, pointer.start - 1, left_at=rate), fork, rate)
    return Judgement(replace(pointer, outcomes=known[-window:], left_at=None), fork)
