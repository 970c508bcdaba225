"""An index of a data set's rows: where each is, and to which split it belongs.

It is made in one pass that also reads every prompt, so that a wrong row is found before anything is trained. It takes
8 bytes a row (byte offsets, or numbers), and as many again for each row's split and for what decides it.

Shares are exact, to a row: the rows are ordered by a hash of their prompt and the seed, and the first of them make the
first share. Rows with the same prompt are thus in the same split, and none is trained on and held out.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ale.errors import ConfigError
from ale.task import TRAIN
from ale_data.columns import Columns, Question, look_up, read_question
from ale_data.tables import Row, Table

PAUSE_ROWS = 1000
"""How many rows are read before the event loop gets its turn."""


@dataclass
class RowIndex:
    """The rows of the tables one after the other; `splits` maps the name of each split to its rows."""

    tables: Sequence[Table]
    starts: list[int] = field(default_factory=list)
    """The number of rows before each table."""
    at: array[int] = field(default_factory=lambda: array("Q"))
    splits: dict[str, array[int]] = field(default_factory=dict)

    def fetch(self, number: int) -> Row:
        """Return a row by its number, from 0. Raises `ConfigError`."""
        i = bisect_right(self.starts, number) - 1
        return self.tables[i].fetch(self.at[number], number - self.starts[i] + 1)

    def order(self, split: str, seed: int | None) -> Sequence[int]:
        """Return the numbers of a split's rows in the order of the seed; without one, in that of the data."""
        numbers = self.splits[split]
        if seed is not None:
            numbers = numbers[:]
            random.Random(f"{seed}/{split}").shuffle(numbers)
        return numbers


def index_rows(
    index: RowIndex, columns: Columns, origin: str, shares: Mapping[str, float], seed: int
) -> Iterator[None]:
    """Fill an index of rows that belong to the split `origin`, or by `columns.split` or `shares` to several. It yields
    now and then, for others to run. Raises `ConfigError` for a wrong row."""
    hashes, ids = array("Q"), array("Q")
    for table in index.tables:
        index.starts.append(len(index.at))
        for row in table.rows():
            number = len(index.at)
            question = read_question(row, columns)
            index.at.append(row.at)
            if columns.id is not None:
                ids.append(_hash(read_id(row, columns.id)))
            if shares:
                hashes.append(_hash(f"{seed}/{_text(question)}"))
            else:
                split = origin if columns.split is None else _read_split(row, columns.split)
                index.splits.setdefault(split, array("Q")).append(number)
            if number % PAUSE_ROWS == 0:
                yield
    if shares:
        index.splits = divide(hashes, shares, origin)
        empty = next((name for name, rows in index.splits.items() if not rows), None)
        if empty is not None:
            raise ConfigError(
                f"{index.tables[0].name}: the shares leave no row for the split '{empty}'. Rows with the same prompt "
                f"stay together, and {len(hashes)} rows have {len(set(hashes))} different prompts; change tasks.shares."
            )
    _refuse_equal_ids(index, ids, columns)


def divide(hashes: Sequence[int], shares: Mapping[str, float], rest: str = TRAIN) -> dict[str, array[int]]:
    """Return the numbers of each split's rows; each share has at least one row, and the others belong to `rest`."""
    ordered, taken = sorted(hashes), 0
    last: list[int] = []
    for share in shares.values():
        taken = min(len(ordered), taken + max(1, round(share * len(ordered))))
        last.append(ordered[taken - 1] if ordered else 0)
    names = [*shares, rest]
    splits = {name: array("Q") for name in names}
    for number, value in enumerate(hashes):
        splits[names[bisect_left(last, value)]].append(number)
    return splits


def read_id(row: Row, column: str) -> str:
    """Return the id in a row's column. Raises `ConfigError`."""
    value = look_up(row.values, column)
    if value is None or value == "" or isinstance(value, list | dict):
        raise ConfigError(f"{row.place}: the column '{column}' must be an id, a word or number, not {value!r:.60}.")
    return str(value)


def _read_split(row: Row, column: str) -> str:
    value = look_up(row.values, column)
    if value is None or value == "" or isinstance(value, list | dict):
        raise ConfigError(f"{row.place}: the column '{column}' must name the row's split, not {value!r:.60}.")
    return str(value)


def _refuse_equal_ids(index: RowIndex, hashes: array[int], columns: Columns) -> None:
    ordered = sorted(hashes)
    twice = next((one for one, other in pairwise(ordered) if one == other), None)
    if twice is not None:
        rows = [index.fetch(number) for number, value in enumerate(hashes) if value == twice][:2]
        raise ConfigError(
            f"{rows[1].place}: the id '{read_id(rows[1], str(columns.id))}' in the column '{columns.id}' is that of "
            f"{rows[0].place} too; leave out columns.id, or make ids unique."
        )


def _text(question: Question) -> str:
    before = "".join(f"\0{message.role}\0{message.content}" for message in question.before)
    return f"{question.instruction}{before}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
