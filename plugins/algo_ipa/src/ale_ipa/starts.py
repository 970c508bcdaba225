"""Where rollouts start on an expert's path (paper, 3.2.4.4), as pure functions and values.

A *start* is how many of the expert's chunks are replayed: 0 is the beginning, `k - 1` is a rollout from chunk `k`.

- Parallelized initialization: `anchors` chooses several starts, `spread` shares a group's rollouts out among them.
- Sequential rollback: a `Pointer` begins at the last chunk; `judge` moves it one chunk back where the policy succeeds
  from there, and finds the crucial chunks on the way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal


def anchors(chunks: int, count: int, choice: Literal["uniform", "random"], rng: random.Random) -> list[int]:
    """At most `count` different starts on a path of `chunks` chunks, ascending, 0 always among them.

    `uniform`: at even distances from the first to the last chunk. `random`: the others are drawn from `rng`.
    """
    if chunks <= count:
        return list(range(max(1, chunks)))
    if count == 1:
        return [0]
    if choice == "random":
        return [0, *sorted(rng.sample(range(1, chunks), count - 1))]
    return [i * (chunks - 1) // (count - 1) for i in range(count)]


def spread(starts: list[int], rollouts: int) -> list[int]:
    """A start for each rollout: as many from one as from another, but for one more from the earlier where it does not
    come out even."""
    return sorted(starts[j % len(starts)] for j in range(rollouts))


ROUNDING = 1e-9
"""0.8 - 0.5 is no larger drop than 0.3."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where rollouts of a task start on the path of `expert`, which has `chunks` chunks."""

    expert: str
    chunks: int
    start: int
    outcomes: tuple[bool, ...] = ()
    """Whether the last rollouts from here passed, oldest first; at most a window."""
    left_at: float | None = None
    """The success rate at which the start behind this one was left; None once this start was compared with it."""

    @classmethod
    def at_last(cls, expert: str, chunks: int) -> Pointer:
        """The last chunk is the first that the policy makes."""
        return cls(expert, chunks, max(0, chunks - 1))

    def onto(self, expert: str, chunks: int) -> Pointer:
        """On the path of a shorter expert: as many chunks from its end as before, or at its beginning where it has no more
        than that. Success is measured anew."""
        return Pointer(expert, chunks, max(0, chunks - (self.chunks - self.start)))


@dataclass(frozen=True, slots=True)
class Fork:
    """Chunk `chunk` (from 1) is crucial: success was `before` when it was replayed, and `after` when the policy made it."""

    chunk: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """Where the pointer stands now, the fork that was found, and the rate at which the start was left if it was."""

    pointer: Pointer
    fork: Fork | None = None
    left_at: float | None = None


def judge(pointer: Pointer, outcomes: list[bool], window: int, advance_at: float, fork_drop: float) -> Judgement:
    """What a step's rollouts from the pointer's start change.

    With a window of them at hand: the first window from a start is compared with the rate at which the start behind it was
    left, and a drop by more than `fork_drop` is a fork. The last window decides whether the pointer moves: one chunk back
    where its rate is at least `advance_at`, unless it is at the beginning.
    """
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
