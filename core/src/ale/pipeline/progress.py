"""What a running pipeline tells: stages, steps, numbers. Displays implement it (`ale.view.progress`)."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears how far a run is."""

    def stage(self, name: str, total: int) -> None:
        """A stage begins; `total` is how many units it has (episodes or steps)."""
        ...

    def advance(self, n: int = 1) -> None:
        """`n` more units are done."""
        ...

    def numbers(self, **values: float) -> None:
        """The latest figures, e.g. `success`, `tokens_per_s`."""
        ...

    def note(self, sentence: str) -> None:
        """Something that a person wants to read."""
        ...
