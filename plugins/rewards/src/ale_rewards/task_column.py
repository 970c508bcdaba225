"""A column of the tasks' rows that a reward reads, such as the right answer."""

from __future__ import annotations

from typing import Any

from ale.errors import ConfigError, TaskError
from ale.registry.validation import nearest_hint
from ale.task import Task


class Column:
    """It reads one column. Until a task had it, a task without it refuses the run; later ones are broken tasks."""

    def __init__(self, setting: str, name: str) -> None:
        self._setting = setting
        self._name = name
        self._was_seen = False

    def read(self, task: Task) -> Any:
        """Return the task's value, never None. Raises `ConfigError`, `TaskError`."""
        if sentence := self.objection(task):
            raise TaskError(sentence) if self._was_seen else ConfigError(sentence)
        self._was_seen = True
        return task.metadata[self._name]

    def objection(self, task: Task) -> str:
        """Return a sentence if the task has nothing in the column, else an empty text."""
        if task.metadata.get(self._name) is not None:
            return ""
        names = ", ".join(sorted(task.metadata))
        return (
            f"{self._setting}: the task {task.id} has nothing in the column '{self._name}'."
            f"{'' if self._name in task.metadata else nearest_hint(self._name, task.metadata)} "
            + (f"Its columns are: {names}." if names else "It has no columns at all.")
        )


def as_text(value: Any) -> str:
    """Return an answer as text; 42.0, which a table may make of 42, is `42`."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
