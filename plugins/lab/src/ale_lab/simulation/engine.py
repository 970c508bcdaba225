"""A simulated engine: the more sequences it samples at once, and the longer they are, the slower each token is.

With b sequences under way that hold k tokens of KV together, each gets a token every `c0 + c1 b + c2 k` seconds. The
rate is the same for all, so one *token clock* counts the tokens that each has got since the engine began; a sequence is
done when this clock has gone as far as it is long. Events happen only when a sequence comes or goes.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ale_lab.simulation import FORBID
from ale_lab.simulation.event_queue import EventQueue


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Seconds a token: `c0` fixed, `c1` for each sequence, `c2` for each token of KV; prompts are computed at
    `prefill_tokens_s`. At most `kv_tokens` fit, and at most `most` sequences are sampled at once."""

    __pydantic_config__ = FORBID
    c0: float = 0.008
    c1: float = 5e-5
    c2: float = 2e-9
    prefill_tokens_s: float = 20_000.0
    kv_tokens: float = 400_000.0
    most: int = 256
    curve: tuple[tuple[float, float], ...] = ()
    """(sequences, seconds a token) as measured, in rising order, in place of `c0`, `c1` and `c2`."""

    def seconds_a_token(self, sequences: int, kv: float) -> float:
        """Return the seconds in which each of so many sequences gets a token; between measured points it is a line."""
        if not self.curve:
            return self.c0 + self.c1 * sequences + self.c2 * kv
        at = bisect(self.curve, (sequences, math.inf))
        (b0, s0), (b1, s1) = self.curve[max(0, at - 1)], self.curve[min(at, len(self.curve) - 1)]
        return s0 if b1 <= b0 else s0 + (s1 - s0) * (sequences - b0) / (b1 - b0)


@dataclass(slots=True)
class Turn:
    """One model call: `context` tokens of prompt, of which `new` have to be computed, and `tokens` to sample."""

    context: float
    new: float
    tokens: float
    done: Callable[[], None]


class SimulatedEngine:
    """Samples turns by the token clock. `busy_s` is the time in which it has sampled."""

    def __init__(self, events: EventQueue, speed: EngineSpeed) -> None:
        self.busy_s = self.tokens = 0.0
        self._events, self._speed = events, speed
        self._running: list[tuple[float, int, Turn]] = []
        self._waiting: deque[Turn] = deque()
        self._clock = self._since = 0.0
        self._kv = self._reserved = 0.0
        """The tokens of KV that there are, and that there will be when what is sampled is done."""
        self._made = self._planned = 0
        self.paused = False
        self._draining = False
        self._drained: Callable[[], None] | None = None
        """Is called once nothing is sampled any more."""
        self.serving = True
        """Whether turns may come."""

    @property
    def load(self) -> int:
        """The number of turns that it has, sampled or waiting."""
        return len(self._running) + len(self._waiting)

    @property
    def kv_tokens(self) -> float:
        """The tokens of KV that it needs for all of its turns, when they are done."""
        return self._reserved + sum(turn.context + turn.tokens for turn in self._waiting)

    def add(self, turn: Turn) -> None:
        """A model call comes."""
        self._pass_time()
        self._waiting.append(turn)
        self._admit()

    def pause(self) -> None:
        """Sample nothing until `resume`."""
        self._pass_time()
        self.paused = True
        self._planned += 1

    def drain(self, drained: Callable[[], None]) -> None:
        """Begin no turn until `resume`, and call a function when those under way are done."""
        if self._running:
            self._drained = drained
        self._draining = True
        if not self._running:
            drained()

    def resume(self) -> None:
        """Go on."""
        self._pass_time()
        self.paused = self._draining = False
        self._admit()

    def evict(self, whole: bool = False) -> list[Turn]:
        """Give up all turns: each comes back with what is left of it (or `whole`), and its context has to be computed
        again."""
        self._pass_time()
        given_up = []
        for end, _, turn in self._running:
            left = turn.tokens if whole else end - self._clock
            context = turn.context + turn.tokens - left
            given_up.append(Turn(context, context, left, turn.done))
        given_up += self._waiting
        self._running = []
        self._kv = self._reserved = 0.0
        self._waiting.clear()
        self._planned += 1
        return given_up

    @property
    def _seconds_a_token(self) -> float:
        return self._speed.seconds_a_token(len(self._running), self._kv)

    def _pass_time(self) -> None:
        passed, self._since = self._events.now - self._since, self._events.now
        if self._running and not self.paused and passed > 0:
            tokens = passed / self._seconds_a_token
            self._clock += tokens
            self._kv += tokens * len(self._running)
            self.tokens += tokens * len(self._running)
            self.busy_s += passed

    def _admit(self) -> None:
        if self.paused:
            return
        while not self._draining and self._waiting and len(self._running) < self._speed.most:
            turn = self._waiting[0]
            if self._running and self._reserved + turn.context + turn.tokens > self._speed.kv_tokens:
                break
            self._waiting.popleft()
            self._made += 1
            # A prompt is computed while others sample: it costs its own turn the time, as so many tokens.
            prefill = turn.new / self._speed.prefill_tokens_s / max(1e-9, self._seconds_a_token)
            heapq.heappush(self._running, (self._clock + prefill + turn.tokens, self._made, turn))
            self._kv += turn.context
            self._reserved += turn.context + turn.tokens
        self._plan()

    def _plan(self) -> None:
        """Have an event when the next sequence is done, unless something changes before."""
        self._planned += 1
        plan = self._planned
        if self._running:
            wait = max(0.0, self._running[0][0] - self._clock) * self._seconds_a_token
            self._events.after(wait, lambda: self._finish(plan))

    def _finish(self, plan: int) -> None:
        if plan != self._planned:
            return
        self._pass_time()
        done = []
        while self._running and self._running[0][0] <= self._clock + 1e-6:
            _, _, turn = heapq.heappop(self._running)
            self._kv -= turn.context + turn.tokens
            self._reserved -= turn.context + turn.tokens
            done.append(turn)
        if not self._running:
            self._kv = self._reserved = 0.0
        self._admit()
        for turn in done:
            turn.done()
        if self._drained is not None and not self._running:
            drained, self._drained = self._drained, None
            drained()
