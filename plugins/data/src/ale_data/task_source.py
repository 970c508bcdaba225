"""The task source `jsonl`: each row of a data set is a task, without tests and without a sandbox of its own.

1. The data are one or several *origins*: the files of `files`, the splits of a data set, or one file. An origin may be
   divided once more, by `columns.split` or by `shares`.
2. Every row is read once at the start (`row_index.py`), unless the rows are neither shuffled nor divided: those are
   streamed, and a wrong one is found when it is reached.
3. A task's id is the split of the data and the number of the row, or what `columns.id` holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.registry.validation import add_place
from ale.specs.driver import Driver, DriverContext
from ale.specs.start import Responder
from ale.specs.tasks import TaskSource
from ale.task import HELDOUT, TRAIN, Task
from ale_data.columns import COMPLETION, make_task, read_question
from ale_data.config import DataConfig
from ale_data.demonstrator import make_demonstrator
from ale_data.open_tables import is_hub_name, open_file, open_path
from ale_data.row_index import RowIndex, index_rows, read_id
from ale_data.tables import Row, Table

HELDOUT_NAMES = (HELDOUT, "test", "validation", "valid", "val", "dev", "eval")
"""What data sets call the split that is held out."""
PLACE = "The task source 'jsonl'"


class JsonlTasks(Driver, TaskSource):
    """Makes tasks of the rows of a data set."""

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"demonstrations"})
    Config = DataConfig
    config: DataConfig

    def __init__(self, config: DataConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._origins: dict[str, Sequence[Table]] | None = None
        self._indexes: dict[str, RowIndex] = {}

    @classmethod
    def provides(cls, config: DataConfig) -> frozenset[str]:
        """It has demonstrators if a column is the completion."""
        return cls.capabilities if config.columns.completion is not None else frozenset()

    @classmethod
    def needs(cls, config: DataConfig) -> Mapping[str, Collection[str | type]]:
        """It needs nothing of other plugins. Its files are looked at here, since this is asked when a run is checked,
        and not whenever its configuration is read: a report is also made where the data are not.

        Raises `ConfigError` for a missing file and for a wrong column."""
        if cls.is_here(config):
            _open(config)
        return {}

    @classmethod
    def is_here(cls, config: DataConfig) -> bool:
        """Return whether the data are not those of a name on the hub."""
        return config.path is None or not is_hub_name(config.path)

    async def start(self) -> None:
        """Open the data and index the rows. Raises `ConfigError`."""
        self._origins = await asyncio.to_thread(_open, self.config)
        for origin in self._origins if self._is_indexed else ():
            for _ in self._make_index(origin):
                await asyncio.sleep(0)

    def tasks(self, split: str) -> Iterable[Task]:
        return islice(self._tasks(split), self.config.limit)

    def size(self, split: str) -> int | None:
        if not self._is_indexed:
            return None
        by_name = {name: rows for index in self._indexes.values() for name, rows in index.splits.items()}
        count = len(by_name[self._find(split, by_name)])
        return count if self.config.limit is None else min(count, self.config.limit)

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """Return a demonstrator that answers with the row's completion. Raises `TaskError` if that cannot be read."""
        return make_demonstrator(task.id, task.metadata.get(COMPLETION))

    @property
    def _is_indexed(self) -> bool:
        return bool(self.config.shuffle or self.config.columns.split or self._shares)

    @property
    def _shares(self) -> dict[str, float]:
        """The shares of the data, unless they have splits of their own and the run file names no shares."""
        by_default = self.config.shares is None and (
            self.config.path is None or self.config.columns.split is not None or len(self._open_origins()) > 1
        )
        return {} if by_default else self.config.shares_without_rest

    def _open_origins(self) -> dict[str, Sequence[Table]]:
        if self._origins is None:
            self._origins = _open(self.config)
        return self._origins

    def _divided(self) -> str | None:
        """Return the origin that is divided by shares or by a column, if one is. Raises `ConfigError` if it is not
        clear which."""
        origins, called = self._open_origins(), self.config.splits.get(TRAIN, TRAIN)
        if not self._shares and self.config.columns.split is None:
            return None
        if len(origins) > 1 and (called not in origins or self.config.columns.split is not None):
            raise ConfigError(
                f"{PLACE}: the data have the splits {', '.join(origins)} already; leave out "
                f"{'columns.split' if self.config.columns.split else 'shares'}."
            )
        origin = called if called in origins else next(iter(origins))
        clash = next((name for name in self._shares if name in origins and name != origin), None)
        if clash is not None:
            raise ConfigError(f"{PLACE}: the data have a split '{clash}' already; take it out of shares.")
        return origin

    def _make_index(self, origin: str) -> Iterator[None]:
        shares = self._shares if origin == self._divided() else {}
        index = RowIndex(self._open_origins()[origin])
        name = TRAIN if shares else origin
        with add_place(PLACE):
            yield from index_rows(index, self.config.columns, name, shares, self.config.seed)
        self._indexes[origin] = index

    def _tasks(self, split: str) -> Iterator[Task]:
        if not self._is_indexed:
            origin = self._find(split, {name: name for name in self._open_origins()})
            seen: set[str] = set()
            for number, row in enumerate((row for table in self._open_origins()[origin] for row in table.rows()), 1):
                task = self._make_task(origin, number, row)
                if task.id in seen:
                    raise ConfigError(f"{PLACE}: {row.place}: there is a second task with the id '{task.id}'.")
                if self.config.columns.id is not None:
                    seen.add(task.id)
                yield task
            return
        for origin in self._open_origins():
            if origin not in self._indexes:
                for _ in self._make_index(origin):
                    pass
        by_name = {name: origin for origin, index in self._indexes.items() for name in index.splits}
        called = self._find(split, by_name)
        origin = by_name[called]
        index = self._indexes[origin]
        for number in index.order(called, self.config.seed if self.config.shuffle else None):
            yield self._make_task(origin, number + 1, index.fetch(number))

    def _find(self, split: str, names: Collection[str]) -> str:
        """Return what the data call a split. Raises `ConfigError` with the splits that there are."""
        called = self.config.splits.get(split)
        candidates = (called,) if called is not None else HELDOUT_NAMES if split == HELDOUT else (split,)
        found = next((name for name in candidates if name in names), None)
        if found is None:
            wanted = f"'{split}'" if called is None else f"'{called}', which splits.{split} names"
            other = min((name for name in names if name != TRAIN), default=None)
            mends = [] if other is None else [f"say what the data call it (splits: {{{split}: {other}}})"]
            if self.config.path is not None and not self._shares and split != TRAIN:
                mends.append(f"hold some rows out (shares: {{{split}: 0.1}})")
            raise ConfigError(
                f"{PLACE} has the split{'s' * (len(names) > 1)} {', '.join(sorted(names))}, not {wanted}: "
                f"{'; '.join([*mends, 'for an evaluation, name another split with eval.split'])}."
            )
        return found

    def _make_task(self, origin: str, number: int, row: Row) -> Task:
        columns = self.config.columns
        with add_place(PLACE):
            question = read_question(row, columns)
            task_id = f"{origin}-{number}"
            if columns.id is not None:
                task_id = read_id(row, columns.id)
                if len(self._open_origins()) > 1:
                    task_id = f"{origin}-{task_id}"
            return make_task(row, question, columns, task_id)


def _open(config: DataConfig) -> dict[str, Sequence[Table]]:
    """Open the data and check that the columns are there. Raises `ConfigError`."""
    with add_place(PLACE):
        if config.path is not None:
            opened: Any = open_path(config.path, config.subset, config.revision)
            origins: dict[str, Sequence[Table]] = {name: (table,) for name, table in opened.items()}
        else:
            paths = config.paths_by_split()
            origins = {name: tuple(open_file(Path(path)) for path in paths[name]) for name in paths}
        for tables in origins.values():
            for table in tables:
                config.columns.check(table.peek(), table.name)
        return origins
