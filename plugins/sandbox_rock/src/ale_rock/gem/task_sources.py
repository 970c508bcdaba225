"""Finds the tasks of ALE's task sources by their names as environments: `ale:SOURCE/SPLIT/TASK`.

A source is opened at its first use, and its tasks are drawn in its own order, as many as are needed. Only sources that
the settings name can be opened: a source reads files of this machine, and some run programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ale.errors import ConfigError
from ale.registry.drivers import build_driver
from ale.registry.validation import nearest_hint
from ale.specs.choice import PluginChoice
from ale.specs.driver import Driver, DriverContext
from ale.specs.tasks import TaskSource
from ale.task import TRAIN, Task

PREFIX = "ale:"
MOST_TASKS = 10_000
"""The most tasks of a split that can be played."""


@dataclass
class Split:
    """The tasks of a split, as far as they were drawn."""

    rest: Iterator[Task]
    drawn: list[Task] = field(default_factory=list)

    def draw(self, count: int) -> None:
        """Draw until `count` tasks are drawn, or the split has no more."""
        self.drawn += islice(self.rest, max(0, min(count, MOST_TASKS) - len(self.drawn)))


class TaskSources:
    """The sources that the settings name: each is a section `tasks` of a run file."""

    def __init__(self, sections: Mapping[str, Mapping[str, Any]]) -> None:
        self._sections = sections
        self._sources: dict[str, Driver] = {}
        self._splits: dict[tuple[str, str], Split] = {}
        self._lock = asyncio.Lock()

    def check(self) -> None:
        """Raise `ConfigError` if one of them is not installed, or its settings are wrong."""
        for name in self._sections:
            self._build(name)

    async def close(self) -> None:
        """Close the sources."""
        sources, self._sources = list(self._sources.values()), {}
        self._splits.clear()
        for source in sources:
            await source.close()

    async def find(self, env_id: str, seed: int) -> Task:
        """Return the task that a name means: by its number in the split or its id; without either, the seed chooses
        one. Raises `ConfigError` if there is none, and whatever opening the source raises."""
        name, split_name, wanted = parse(env_id)
        async with self._lock:  # a source is not used by two threads
            source = await self._open(name)
            return await asyncio.to_thread(self._find, source, name, split_name, wanted, seed)

    async def _open(self, name: str) -> Any:
        if name not in self._sources:
            if name not in self._sections:
                hint = nearest_hint(name, self._sections)
                raise ConfigError(
                    f"This service plays no tasks of the source {name!r}.{hint} Its setting `task_sources` names "
                    f"{', '.join(self._sections) or 'none'}."
                )
            driver = self._build(name)
            await driver.start()
            self._sources[name] = driver
        return self._sources[name]

    def _build(self, name: str) -> Driver:
        section = dict(self._sections[name])
        choice = PluginChoice(use=section.pop("use", name), settings=section)
        return build_driver("tasks", choice, DriverContext(), f"task_sources.{name}")

    def _find(self, source: TaskSource, name: str, split_name: str, wanted: str | None, seed: int) -> Task:
        split = self._splits.get((name, split_name))
        if split is None:
            split = self._splits[name, split_name] = Split(iter(source.tasks(split_name)))
        if wanted is None:
            number = seed % MOST_TASKS
            split.draw(number + 1)
            if split.drawn:
                return split.drawn[number % len(split.drawn)]
        elif wanted.isdecimal():
            split.draw(int(wanted) + 1)
            if int(wanted) < len(split.drawn):
                return split.drawn[int(wanted)]
        else:
            split.draw(MOST_TASKS)
            for task in split.drawn:
                if task.id == wanted:
                    return task
        what = "has no tasks" if wanted is None else f"has no task {wanted!r} among its {len(split.drawn)} first"
        raise ConfigError(f"The split {split_name!r} of the task source {name!r} {what}.")


def parse(env_id: str) -> tuple[str, str, str | None]:
    """Return the source, the split and the task, if one is named, of `ale:SOURCE[/SPLIT[/TASK]]`."""
    name, _, rest = env_id.removeprefix(PREFIX).partition("/")
    split, _, task = rest.partition("/")
    return name, split or TRAIN, task or None
