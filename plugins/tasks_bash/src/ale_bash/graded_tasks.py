"""The graded tasks: twenty tasks written by hand, one in each line of `graded.jsonl`, easy ones first.

`metadata.needs` names the programs that a task or its tests run (`python3`, `pytest`); each is a tag too, so that
tasks can be chosen by what a sandbox has. Every fourth task is held out where graded tasks are trained on.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from ale.task import HELDOUT, Task

HELDOUT_EVERY = 4


@cache
def graded_tasks() -> tuple[Task, ...]:
    """All graded tasks."""
    text = resources.files("ale_bash").joinpath("graded.jsonl").read_text(encoding="utf-8")
    return tuple(Task.model_validate_json(line) for line in text.splitlines() if line.strip())


def graded_tasks_of_split(split: str) -> tuple[Task, ...]:
    """The graded tasks of the split `train` or `heldout`."""
    held_out = split == HELDOUT
    return tuple(task for i, task in enumerate(graded_tasks(), 1) if (i % HELDOUT_EVERY == 0) == held_out)
