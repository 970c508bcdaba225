"""The live line shows the stage, a progress bar, the latest numbers and the stage's remaining time. Notes are printed
above it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ale_train.display.plain_lines import format_figures
from ale_train.workbench.progress import Progress


class LiveLine:
    """Shows a progress bar of the library rich, a new one for each stage."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._values: dict[str, float] = {}

    def stage(self, name: str, total: int) -> None:
        """Begin a stage with `total` units."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total or None, figures=format_figures(self._values))

    def advance(self, n: int = 1) -> None:
        """Report that `n` units are done."""
        if self._task is not None:
            self._bar.advance(self._task, n)

    def numbers(self, **values: float) -> None:
        """Show the latest numbers."""
        self._values.update(values)
        if self._task is not None:
            self._bar.update(self._task, figures=format_figures(self._values))

    def note(self, sentence: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(f"{time.strftime('%H:%M:%S')} {sentence}", highlight=False, markup=False)


@contextmanager
def live_display() -> Iterator[Progress]:
    """Show the display on stderr while the block runs."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[figures]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        yield LiveLine(bar)
