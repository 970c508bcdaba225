"""A thread that talks to MLflow, so that a slow server holds up no rollout.

It makes one call after the other. One that fails is reported and lost: MLflow itself has retried it for minutes by
then. After `MOST_FAILURES` of them only the last call is made, which ends the run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Call = Callable[[], None]
MOST_FAILURES = 3


class Sender:
    """Makes calls in their order, in a thread of its own. `report` gets the error of each call that failed."""

    def __init__(self, report: Callable[[Exception], None]) -> None:
        self._report = report
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._last: Call = lambda: None
        self._failures = 0
        # A daemon: a server that does not answer cannot keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="ale-mlflow", daemon=True)
        self._thread.start()

    def send(self, call: Call) -> None:
        """Make a call after those before it."""
        self._calls.put(call)

    def close(self, last: Call, within_s: float) -> bool:
        """Make the last call, and wait for all of them; return whether they were done within the time."""
        self._last = last
        self._calls.put(None)
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._failures < MOST_FAILURES:
                self._make(call)
        self._make(self._last)

    def _make(self, call: Call) -> None:
        try:
            call()
        except Exception as error:  # the library raises its own kinds, and those of its HTTP and SQL libraries
            self._failures += 1
            self._report(error)
