"""Where stderr is no terminal (a log file, CI), a run prints plain lines with the time of day: one for each note, and
some for each stage that takes a while."""

from __future__ import annotations

import sys
import time

_FORMATS = {
    "remaining_s": "{:.0f} s of RL left",
    "tokens_per_s": "{:.0f} tok/s",
    "success": "success {:.2f}",
    "heldout": "held-out {:.2f}",
    "loss": "loss {:.3f}",
}


def format_figures(values: dict[str, float]) -> str:
    """Return the latest figures as one text."""
    return "  ".join(_FORMATS.get(name, name + " {:.3g}").format(value) for name, value in values.items())


class PlainLines:
    """It prints one line for each note, and at most one every `interval_s` seconds in between."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self._interval_s = interval_s
        self._last = time.monotonic()
        self._name, self._total, self._done = "", 0, 0
        self._values: dict[str, float] = {}

    def stage(self, name: str, total: int) -> None:
        """Note that a stage begins."""
        self._name, self._total, self._done = name, total, 0

    def advance(self, n: int = 1) -> None:
        """Count `n` more units, and print a line if `interval_s` seconds have passed since the last one."""
        self._done += n
        if time.monotonic() - self._last >= self._interval_s:
            self.note(f"{self._name}: {self._done}/{self._total}  {format_figures(self._values)}".rstrip())

    def numbers(self, **values: float) -> None:
        """Store the latest figures."""
        self._values.update(values)

    def note(self, sentence: str) -> None:
        """Print a note on a line of its own."""
        self._last = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)
