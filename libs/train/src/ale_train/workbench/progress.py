"""The interface through which a running pipeline reports stages, steps and figures (see `ale_train.display.notes`)."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives reports on how far a run is."""

    def stage(self, name: str, total: int) -> None:
        """Report that a stage begins; `total` is how many units it has (episodes or steps)."""

    def advance(self, n: int = 1) -> None:
        """Report that `n` more units are done."""

    def numbers(self, **values: float) -> None:
        """Report new figures, such as `success` and `tokens_per_s`."""

    def note(self, sentence: str) -> None:
        """Show a sentence to the person who watches the run."""
