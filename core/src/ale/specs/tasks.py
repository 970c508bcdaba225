"""The task source contract: where tasks come from, and who can show how they are done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ale.specs.driver import Driver
from ale.specs.scaffold import Responder
from ale.task import Task


class TaskSource(Driver, ABC):
    """Yields tasks by split; the same config and seed yield the same tasks."""

    @abstractmethod
    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of a split (`train`, `heldout`, ...), lazily, in a fixed order, without end or finite.

        Raises `ConfigError` for a split that does not exist, when called or when the first task is taken. What is drawn
        at random is drawn from a setting of the source's own, not from the run's seed: runs are compared on the same tasks.
        """

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """Somebody who shows how the task is done, answering in the model's place and reacting to what he sees;
        None where the source has nobody."""
        return None
