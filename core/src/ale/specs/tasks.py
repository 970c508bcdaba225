"""The task source contract: a source yields tasks, and may have demonstrators that solve them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from ale.specs.start import Responder
from ale.task import Task


class TaskSource(ABC):
    """It yields tasks by split; the same config and seed yield the same tasks."""

    @abstractmethod
    def tasks(self, split: str) -> Iterable[Task]:
        """Yield the tasks of a split (`train`, `heldout`, ...) lazily and in a fixed order; there may be infinitely
        many.

        Raises `ConfigError` for an unknown split, when called or when the first task is taken. Random choices depend on
        a setting of the source, not on the run's seed: runs are compared on the same tasks."""

    @classmethod
    def is_here(cls, config: Any) -> bool:
        """Return whether the tasks can be read without a download; `ale config validate` leaves others alone."""
        return True

    def size(self, split: str) -> int | None:
        """Return the number of tasks of a split, if it is known without making them. Raises `ConfigError` for an
        unknown split."""
        return None

    def demonstrator(self, task: Task, seed: int) -> Responder | None:
        """Return a demonstrator, which solves the task in the model's place and reacts to the conversation; None if the
        source has none. Each answers in one episode, and those of one seed do the same."""
        return None
