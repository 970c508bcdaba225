"""The progress display: an installed package brings it, through the entry-point group `ale.displays`. Without one, only
notes are printed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from ale.pipeline.progress import Progress

DISPLAYS = "ale.displays"


class Notes:
    """It prints each note on a line with the time of day, and nothing else."""

    def _do_nothing(self, *arguments: Any, **figures: Any) -> None: ...

    stage = advance = numbers = _do_nothing

    def note(self, sentence: str) -> None:
        """Print the sentence."""
        print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


@contextmanager
def display() -> Iterator[Progress]:
    """Open the display that is installed; it decides how it shows a run where stderr is no terminal."""
    for entry in sorted(metadata.entry_points(group=DISPLAYS)):
        with entry.load()() as progress:
            yield progress
        return
    yield Notes()
