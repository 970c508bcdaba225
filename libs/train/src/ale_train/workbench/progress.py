"""The interface through which a running pipeline reports stages, steps and figures (see `ale_train.display.notes`)."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """It receives reports on how far a run is."""

    def stage(self, name: str, total: int) -> None:
        """A stage begins; `total` is how many units it has (episodes or steps)."""

    def advance(self, n: int = 1) -> None:
        """`n` more units are done."""

    def numbers(self, **values: float) -> None:
        """New figures are known, such as `success` and `tokens_per_s`."""

    def note(self, sentence: str) -> None:
        """Show a sentence to the person who watches the run."""
