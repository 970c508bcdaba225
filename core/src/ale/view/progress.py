"""The progress display: a live line at a terminal, plain lines without one.

At a terminal one line shows the stage, a bar, the latest figures and the remaining time of the stage; notes scroll by
above it. Elsewhere (a log file, CI) each stage that takes a while and each note is a line with the time of day.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ale.pipeline.progress import Progress

_FORMATS = {
    "remaining_s": "{:.0f} s of RL left",
    "tokens_per_s": "{:.0f} tok/s",
    "success": "success {:.2f}",
    "heldout": "held-out {:.2f}",
    "loss": "loss {:.3f}",
}


def _figures(values: dict[str, float]) -> str:
    return "  ".join(_FORMATS.get(name, name + " {:.3g}").format(value) for name, value in values.items())


class PlainLines:
    """One line for each note, and at most one every `interval_s` seconds in between."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self._interval_s = interval_s
        self._last = time.monotonic()
        self._name, self._total, self._done = "", 0, 0
        self._values: dict[str, float] = {}

    def stage(self, name: str, total: int) -> None:
        """A stage begins."""
        self._name, self._total, self._done = name, total, 0

    def advance(self, n: int = 1) -> None:
        """Units are done."""
        self._done += n
        if time.monotonic() - self._last >= self._interval_s:
            self._line(f"{self._name}: {self._done}/{self._total}  {_figures(self._values)}".rstrip())

    def numbers(self, **values: float) -> None:
        """The latest figures."""
        self._values.update(values)

    def note(self, sentence: str) -> None:
        """A line of its own."""
        self._line(sentence)

    def _line(self, text: str) -> None:
        self._last = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class LiveLine:
    """A rich progress bar that is replaced stage by stage."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task: Any = None
        self._values: dict[str, float] = {}

    def stage(self, name: str, total: int) -> None:
        """A stage begins."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total or None, figures=_figures(self._values))

    def advance(self, n: int = 1) -> None:
        """Units are done."""
        if self._task is not None:
            self._bar.advance(self._task, n)

    def numbers(self, **values: float) -> None:
        """The latest figures."""
        self._values.update(values)
        if self._task is not None:
            self._bar.update(self._task, figures=_figures(self._values))

    def note(self, sentence: str) -> None:
        """A line above the bar."""
        self._bar.console.print(f"{time.strftime('%H:%M:%S')} {sentence}", highlight=False, markup=False)


@contextmanager
def display() -> Iterator[Progress]:
    """The display that fits where stderr goes."""
    if not sys.stderr.isatty():
        yield PlainLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TimeRemainingColumn(compact=True), TextColumn("{task.fields[figures]}"),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        yield LiveLine(bar)
