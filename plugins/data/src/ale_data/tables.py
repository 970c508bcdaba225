"""A table is the rows of one file, or of one split of a Hugging Face data set, whatever its format.

1. `rows` streams it from beginning to end; each row says where it is, for the sentences about it.
2. `fetch` reads a single row again: at its byte offset in a text file, at its number elsewhere. So rows can be taken in
   any order, and a text file is never in memory as a whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ale.errors import ConfigError

PEEKED_ROWS = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its values by column, its place for a sentence (`data.jsonl, line 7`), and `at`, by which `fetch` finds
    it."""

    values: Mapping[str, Any]
    place: str
    at: int


class Table(ABC):
    """The rows of one file or of one split."""

    name: str
    """The name of the file or split, for a sentence."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Yield the rows in their order. Raises `ConfigError` that names the file and the line."""

    @abstractmethod
    def fetch(self, at: int, number: int) -> Row:
        """Return the row `number` (from 1) that `rows` yielded with this `at`. Raises `ConfigError`."""

    def peek(self) -> list[Row]:
        """Return the first rows, at most 100. Raises `ConfigError` if there are none."""
        found = list(islice(self.rows(), PEEKED_ROWS))
        if not found:
            raise ConfigError(f"{self.name} is empty; it needs at least one row.")
        return found

    def columns(self) -> tuple[str, ...]:
        """Return the columns; those of a JSONL file are the keys of its first 100 rows. Raises `ConfigError` if the
        table is empty."""
        return tuple(dict.fromkeys(key for row in self.peek() for key in row.values))
