"""Measures who waits for whom: trainer and engine are each in exactly one state at any time, and the seconds add up.

    trainer   wait_data, switch (its devices come from engines, or go to them), logprobs, update, wait_evaluation,
              publish, save
    engine    busy (a request is sampled), starved (there is none), loading (new weights)

A *bubble* is the share of a step in which a role could do nothing: the trainer's two waits, the engine's `starved`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

WAITS = ("wait_data", "wait_evaluation")
TRAINER_STATES = (*WAITS, "switch", "logprobs", "update", "publish", "save")
ENGINE_STATES = ("starved", "busy", "loading")
MOST_SPANS = 200
MUCH = 0.2
"""A bubble of this share of a step is worth a sentence."""


Span = tuple[str, float, float]
"""State, beginning, end."""


class Role:
    """A part of the loop that is in one of `states` at any time, at first in the first one."""

    def __init__(self, states: tuple[str, ...], clock: Callable[[], float] = time.monotonic) -> None:
        self.state = states[0]
        self.spans: list[Span] = []
        """The spans of the last lap, by the clock."""
        self._ended: list[Span] = []
        self._states, self._clock = states, clock
        self._since = clock()
        self.changes = 0
        """How often its state has changed."""
        self._seconds = dict.fromkeys(states, 0.0)

    def enter(self, state: str) -> None:
        """Change the state. Raises `ValueError` if the role has no such state."""
        if state not in self._states:
            raise ValueError(f"there is no state '{state}', only {', '.join(self._states)}")
        if state != self.state:
            self._close(self._clock())
            self.state, self.changes = state, self.changes + 1

    def lap(self, now: float | None = None) -> dict[str, float]:
        """End a lap, at `now` by the clock; return its seconds in each state, whose sum is the time that has passed."""
        self._close(self._clock() if now is None else now)
        seconds, self._seconds = self._seconds, dict.fromkeys(self._states, 0.0)
        self.spans, self._ended = self._ended, []
        return seconds

    def _close(self, now: float) -> None:
        self._seconds[self.state] += now - self._since
        if self._since < now:
            self._ended.append((self.state, self._since, now))
        self._since = now


class EngineRole(Role):
    """The engine's role: `sampling` is entered for each request, `loading` while weights are published."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(ENGINE_STATES, clock)
        self.requests = 0
        """How many requests are at the engine."""
        self.answered = 0
        """How many requests have ended."""
        self._loading = False

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """A request is at the engine."""
        self.requests += 1
        self._update()
        try:
            yield
        finally:
            self.requests, self.answered = self.requests - 1, self.answered + 1
            self._update()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The engine gets new weights."""
        self._loading = True
        self._update()
        try:
            yield
        finally:
            self._loading = False
            self._update()

    def _update(self) -> None:
        self.enter("loading" if self._loading else "busy" if self.requests else "starved")


def coarsen(spans: Sequence[Span], most: int = MOST_SPANS) -> list[Span]:
    """Return at most so many spans that cover the same time: where there are more, each part of it has the state that
    fills most of it."""
    if len(spans) <= most:
        return list(spans)
    began, ended = spans[0][1], spans[-1][2]
    width = (ended - began) / most
    filled: list[dict[str, float]] = [{} for _ in range(most)]
    for state, start, end in spans:
        for part in range(int((start - began) / width), min(most, int((end - began) / width) + 1)):
            at = began + part * width
            inside = max(0.0, min(end, at + width) - max(start, at))
            filled[part][state] = filled[part].get(state, 0.0) + inside
    states = [max(found, key=found.__getitem__) for found in filled]
    edges = [part for part in range(most) if part == 0 or states[part] != states[part - 1]]
    times = [began + part * width for part in edges] + [ended]
    return [(states[part], times[i], times[i + 1]) for i, part in enumerate(edges)]


def role_metrics(trainer: Mapping[str, float], engine: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a lap: `bubble/trainer`, `bubble/engine`, `trainer/STATE_s`, `engine_state/STATE_s`."""
    seconds = {f"trainer/{state}_s": value for state, value in trainer.items()}
    seconds |= {f"engine_state/{state}_s": value for state, value in engine.items()}
    return {"bubble/trainer": trainer_bubble(trainer), "bubble/engine": _share(engine, "starved")} | seconds


def advice(laps: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], async_ratio: int, ahead: int) -> str:
    """Say in a sentence who waited for whom in the last laps, of trainer and engine, and what to change."""
    trainer, engine = ({s: sum(lap[role][s] for lap in laps) for s in laps[0][role]} for role in (0, 1))
    waits, starved = trainer_bubble(trainer), _share(engine, "starved")
    when = "In the last step" if len(laps) == 1 else f"In the last {len(laps)} steps"
    who = f"{when} the trainer waited {waits:.0%} of the time, and the engine had nothing to sample for {starved:.0%}"
    if waits < MUCH and starved < MUCH:
        return f"{who}: both are busy."
    if not async_ratio:
        return f"{who}: they take turns; rl.async_ratio: 2 lets both work at once."
    if waits < MUCH:
        return (
            f"{who}: training is slower than sampling; train faster, or give the trainer what the engine does not need."
        )
    if starved < MUCH:
        return f"{who}: sampling is slower than training; add engines (engine.replicas), or sample fewer tokens."
    if _share(trainer, "wait_evaluation") > MUCH:
        return f"{who}: new weights wait for an evaluation; make eval.every larger, or eval.episodes smaller."
    if ahead < async_ratio:
        return (
            f"{who}: rollouts wait for their tools, rewards or sandboxes; raise rl.ahead ({ahead}; async_ratio is "
            f"{async_ratio}) and rollout.concurrency."
        )
    return (
        f"{who}: slow rollouts hold up the rest; raise rl.async_ratio above rl.ahead ({ahead}) and rollout.concurrency."
    )


def trainer_bubble(trainer: Mapping[str, float]) -> float:
    """Return the share of a lap in which the trainer waited."""
    return sum(_share(trainer, state) for state in WAITS)


def _share(seconds: Mapping[str, float], state: str) -> float:
    return seconds[state] / max(1e-9, sum(seconds.values()))
