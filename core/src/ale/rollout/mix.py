"""Several task sources as one: tasks are dealt by weight, in a fixed order.

1. Smooth weighted round-robin: at each turn every source gains its weight, the richest gives a task and pays the sum of
   the weights. With weights 3 and 1: a a b a, a a b a, ...
2. A source that runs out begins anew; the mix ends when each has ended once, so never where one is endless.
3. A task keeps its id unless another source has brought it before: then it gets `<source>/` in front, where the source
   is the plugin's name, with its place in the list where two have the same name.
4. Each task gets its source's tags and, last, the source's plugin name, so that `when` can select by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ale.errors import ConfigError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.scaffold import Responder
from ale.specs.tasks import TaskSource
from ale.task import Task

SOURCE = "ale.source"
"""Key in `Task.metadata`: the number of the source, and the id that the task has there."""


@dataclass(frozen=True)
class Source:
    """One source of a mix; started and closed by whoever built it."""

    use: str
    tasks: TaskSource
    weight: float = 1.0
    tags: tuple[str, ...] = ()


class MixedTasks(TaskSource):
    """See the module."""

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self._sources = sources

    def tasks(self, split: str) -> Iterable[Task]:
        """The sources' tasks by weight. Raises `ConfigError` naming the source that does not have the split."""
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
                        f"tasks.mix.{i}: '{use}' has no tasks in its split '{split}': give it some with its settings there (`ale "
                        f"config describe tasks {use}` lists them), take it out of the mix, or, for an evaluation, name another "
                        "split with eval.split."
                    )
            yield self._marked(i, task, owner)

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """Whoever the task's own source has."""
        i, its_id = task.metadata[SOURCE]
        own = task.model_copy(update={"id": its_id})
        source: TaskSource = self._sources[i].tasks
        return source.demonstrator(own, seed)

    def _stream(self, i: int, split: str) -> Iterator[Task]:
        try:
            yield from self._sources[i].tasks.tasks(split)
        except ConfigError as error:
            raise ConfigError(f"tasks.mix.{i}: {error}") from error

    def _marked(self, i: int, task: Task, owner: dict[str, int]) -> Task:
        source = self._sources[i]
        name = source.use
        if [s.use for s in self._sources].count(name) > 1:
            name = f"{name}.{i}"
        new_id = task.id if owner.setdefault(task.id, i) == i else f"{name}/{task.id}"
        tags = tuple(dict.fromkeys([*task.tags, *source.tags, source.use.rpartition(":")[2]]))
        metadata = {**task.metadata, SOURCE: (i, task.id)}
        return task.model_copy(update={"id": new_id, "tags": tags, "metadata": metadata})
