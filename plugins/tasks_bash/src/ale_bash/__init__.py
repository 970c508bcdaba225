"""Shell tasks: parametric families with demonstrators, and 20 graded hand-written ones."""

from ale_bash.task_source import BashTasks

__all__ = ["BashTasks"]
