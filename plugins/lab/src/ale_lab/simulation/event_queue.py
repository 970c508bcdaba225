"""The clock of the simulator: it runs events in order of time, and events of the same time in the order of `after`."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class EventQueue:
    """The events that are to come. `now` is the simulated time in seconds."""

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
