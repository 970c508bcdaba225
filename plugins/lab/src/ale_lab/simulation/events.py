"""The simulator's clock: events in order of time, and of their making where times are equal."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Events:
    """`now` is in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function in so many seconds."""
        self._made += 1
        heapq.heappush(self._heap, (self.now + seconds, self._made, call))

    def run(self, until: Callable[[], bool]) -> None:
        """Let time pass until a condition holds. Raises `RuntimeError` if nothing more will happen before that."""
        while not until():
            if not self._heap:
                raise RuntimeError("the simulated loop is stuck: nothing is under way, and it is not at its end")
            self.now, _, call = heapq.heappop(self._heap)
            call()
