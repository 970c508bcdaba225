"""Selects the tasks to train on: all of the split `train`, or those that a file names (`rl.instances`).

The file is a JSON list of ids, or a report of `ale tasks select`: a JSON object with the tasks' split and with
`instances`: each has an `id`, and `kept` says whether to train on it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ale.errors import ConfigError
from ale.task import TRAIN, Task
from ale_train.workbench.workbench import Workbench

SHOWN = 5
MOST_TASKS = 100_000
"""At most this many tasks of a source are read, because a source may be endless."""


class Instance(BaseModel):
    """Describes one task of a selection."""

    id: str
    kept: bool


class SelectedTasks(BaseModel):
    """Holds the part of a report of `ale tasks select` that training reads; the rest is for people."""

    split: str
    instances: tuple[Instance, ...]


def read_instances(path: Path) -> list[str]:
    """Read the kept ids of a file: a report, or a JSON list of ids. Raises `ConfigError`."""
    where = f"rl.instances: {path}"
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} cannot be read: {error}.") from error
    if isinstance(data, list) and all(isinstance(one, str) for one in data):
        ids = data
    else:
        try:
            report = SelectedTasks.model_validate(data)
        except ValidationError as error:
            raise ConfigError(
                f"{where} is neither a report of `ale tasks select` nor a JSON list of ids "
                f"({error.error_count()} mistakes; the first: {error.errors()[0]['msg']})."
            ) from None
        if report.split != TRAIN:
            raise ConfigError(
                f"{where} holds tasks of the split '{report.split}', and training takes those of '{TRAIN}'; "
                f"select with --split {TRAIN}."
            )
        ids = [instance.id for instance in report.instances if instance.kept]
    if not ids:
        raise ConfigError(f"{where} keeps no task: widen --min-pass and --max-pass, or select among more tasks.")
    if len(set(ids)) < len(ids):
        twice = sorted({one for one in ids if ids.count(one) > 1})
        raise ConfigError(f"{where} names tasks more than once: {list_ids(twice)}.")
    return list(ids)


def list_ids(ids: list[str]) -> str:
    """Format the first ids, and how many more there are."""
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return ", ".join(ids[:SHOWN]) + more


def repeat_tasks(bench: Workbench, instances: Path | None) -> Iterator[Task]:
    """Yield the tasks to train on, all or those that a file keeps, again from the start when they run out.

    Raises `ConfigError` if the source does not have one of them.
    """
    if instances is None:
        return bench.take_tasks(TRAIN)
    return bench.keep_fitting(TRAIN, itertools.cycle(select_tasks(bench, instances)))


def select_tasks(bench: Workbench, instances: Path) -> list[Task]:
    """Return the tasks of the split `train` that a file keeps, in the source's order. Raises `ConfigError` if one is
    missing."""
    wanted = set(read_instances(instances))
    found: dict[str, Task] = {}
    for task in itertools.islice(bench.tasks_once(TRAIN), MOST_TASKS):
        if task.id in wanted:
            found.setdefault(task.id, task)
            if len(found) == len(wanted):
                return list(found.values())
    raise ConfigError(
        f"rl.instances: {instances} names tasks that the source '{bench.config.tasks.use}' does not have in its split "
        f"'{TRAIN}': {list_ids(sorted(wanted - set(found)))}. Select again with the source as it is set now."
    )
