"""A mixture makes one task source of several: it takes tasks by weight, in a fixed order.

1. The order is a smooth weighted round-robin. At each task, the credit of every source grows by its weight; the source
   with the most credit gives the task and pays the sum of the weights. Weights 3 and 1 give: a a b a, a a b a, ...
2. A source that runs out starts again. The mixture ends when each has ended once; with an endless source, never.
3. A task keeps its id unless another source used the id before. Then the id gets the prefix `<source>/`: the source's
   plugin name, with its position in the list if two sources have the same name.
4. Each task gets its source's tags and, last, the source's plugin name, so that `when` can select by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ale.errors import ConfigError
from ale.specs.start import Responder
from ale.specs.tasks import TaskSource
from ale.task import Task

SOURCE = "ale.source"
"""Under this key, `Task.metadata` has the number of the source and the task's id in that source."""


@dataclass(frozen=True)
class MixedSource:
    """One source of a mixture; the caller that built it starts and closes it."""

    use: str
    tasks: TaskSource
    weight: float = 1.0
    tags: tuple[str, ...] = ()


class MixedTasks(TaskSource):
    """Gives the tasks of several sources, as the module's docstring describes."""

    def __init__(self, sources: Sequence[MixedSource]) -> None:
        self._sources = sources

    def tasks(self, split: str) -> Iterable[Task]:
        """Yield the sources' tasks by weight. Raises `ConfigError` that names a source without the split."""
        streams: list[Iterator[Task]] = [self._stream(i, split) for i in range(len(self._sources))]
        credit = [0.0] * len(streams)
        total = sum(source.weight for source in self._sources)
        ended: set[int] = set()
        owner: dict[str, int] = {}
        while True:
            credit = [have + source.weight for have, source in zip(credit, self._sources, strict=True)]
            i = max(range(len(credit)), key=lambda k: (credit[k], -k))
            credit[i] -= total
            task = next(streams[i], None)
            if task is None:
                ended.add(i)
                if len(ended) == len(streams):
                    return
                streams[i] = self._stream(i, split)
                task = next(streams[i], None)
                if task is None:
                    use = self._sources[i].use
                    raise ConfigError(
                        f"tasks.mix.{i}: '{use}' has no tasks in its split '{split}': give it some with its settings "
                        "there (`ale "
                        f"config describe tasks {use}` lists them), take it out of the mix, or, for an evaluation, "
                        "name another "
                        "split with eval.split."
                    )
            yield self._mark(i, task, owner)

    def size(self, split: str) -> int | None:
        """Return how many tasks the sources have together, if each knows."""
        sizes = [source.tasks.size(split) for source in self._sources]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """Return the demonstrator of the task's own source."""
        i, its_id = task.metadata[SOURCE]
        own = task.model_copy(update={"id": its_id})
        source: TaskSource = self._sources[i].tasks
        return source.demonstrator(own, seed)

    def _stream(self, i: int, split: str) -> Iterator[Task]:
        try:
            yield from self._sources[i].tasks.tasks(split)
        except ConfigError as error:
            raise ConfigError(f"tasks.mix.{i}: {error}") from error

    def _mark(self, i: int, task: Task, owner: dict[str, int]) -> Task:
        source = self._sources[i]
        name = source.use
        if [s.use for s in self._sources].count(name) > 1:
            name = f"{name}.{i}"
        new_id = task.id if owner.setdefault(task.id, i) == i else f"{name}/{task.id}"
        tags = tuple(dict.fromkeys([*task.tags, *source.tags, source.use.rpartition(":")[2]]))
        metadata = {**task.metadata, SOURCE: (i, task.id)}
        return task.model_copy(update={"id": new_id, "tags": tags, "metadata": metadata})
