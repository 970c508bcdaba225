"""Which tasks are fit for reinforcement learning (paper 3.2.3): the judgement alone, and the file that keeps it.

An instance is kept where its tests fail on the untouched environment, its reference solution passes, neither verdict
changes over repeated runs, and the policies' mean pass rate lies between `min_pass` and `max_pass`. `ale.pipeline.qualify`
makes the rollouts that are judged here; `rl.instances` reads the file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ale.errors import ConfigError
from ale.task import TRAIN, Task

if TYPE_CHECKING:
    from ale.pipeline.workbench import Workbench

MOST_TASKS = 100_000
"""Tasks of a source that are looked at: one without end is not gone through for ever."""
SHOWN = 5


class Record(BaseModel):
    """Base of what the file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Checks(Record):
    """What repeated scoring said, each time in a fresh sandbox: of the untouched environment, and of the reference solution."""

    untouched: tuple[bool, ...] = ()
    solution: tuple[bool, ...] | None = Field((), description="null: the task has no reference solution.")
    problem: str = Field("", description="Why some of it could not be scored.")


class Rate(Record):
    """How often one policy passed."""

    passed: int = Field(ge=0)
    attempts: int = Field(ge=0)


class Limits(Record):
    """Between which mean pass rates an instance is kept, both included."""

    min_pass: float = Field(0.1, ge=0, le=1)
    max_pass: float = Field(0.9, ge=0, le=1)


class Instance(Record):
    """One task and its judgement; `reason` says why it was dropped."""

    id: str
    tags: tuple[str, ...] = ()
    kept: bool
    reason: str = ""
    pass_rate: float | None = Field(None, description="Mean over the policies; null: none was asked.")
    rates: dict[str, Rate] = {}
    checks: Checks = Checks()


class InstanceReport(Record):
    """The file of `ale tasks select` and `ale tasks check`."""

    split: str
    policies: tuple[str, ...] = ()
    attempts: int = 0
    repeats: int = 0
    limits: Limits = Limits()
    instances: tuple[Instance, ...]

    @property
    def kept(self) -> list[str]:
        """The ids to train on."""
        return [instance.id for instance in self.instances if instance.kept]


def unsound(checks: Checks) -> str:
    """Why a task's verdicts cannot be trusted; nothing where they can."""
    for what, verdicts in (("on the untouched environment", checks.untouched), ("on its reference solution", checks.solution or ())):  # fmt: skip
        if len(set(verdicts)) > 1:
            return f"the verdict changes {what}: {sum(verdicts)} of {len(verdicts)} runs passed"
    if any(checks.untouched):
        return "its tests pass on the untouched environment"
    if checks.solution and not any(checks.solution):
        return "its reference solution does not pass"
    return f"it could not be checked: {checks.problem}" if checks.problem else ""


def mean_rate(rates: Mapping[str, Rate]) -> float | None:
    """The mean of the policies' pass rates, each policy counting alike; None where one has no attempt, or none is there."""
    if not rates or any(rate.attempts == 0 for rate in rates.values()):
        return None
    return float(sum(Fraction(rate.passed, rate.attempts) for rate in rates.values()) / len(rates))


def judged(task: Task, checks: Checks, rates: Mapping[str, Rate], limits: Limits) -> Instance:
    """Whether to keep a task. Without `rates` its checks alone decide."""
    reason, rate = unsound(checks), mean_rate(rates)
    if not reason and rates and rate is None:
        lost = ", ".join(name for name, found in rates.items() if found.attempts == 0)
        reason = f"no attempt of {lost} could be scored"
    if not reason and rate is not None and rate < limits.min_pass:
        reason = f"too hard: the pass rate {rate:.2f} is below {limits.min_pass:g}"
    if not reason and rate is not None and rate > limits.max_pass:
        reason = f"too easy: the pass rate {rate:.2f} is above {limits.max_pass:g}"
    return Instance(
        id=task.id, tags=task.tags, kept=not reason, reason=reason, pass_rate=rate, rates=dict(rates), checks=checks
    )


def read_instances(path: Path) -> list[str]:
    """The ids that a file keeps: a report, or a JSON list of ids. Raises `ConfigError`."""
    where = f"rl.instances: {path}"
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} cannot be read: {error}.") from error
    if isinstance(data, list) and all(isinstance(one, str) for one in data):
        ids = data
    else:
        try:
            report = InstanceReport.model_validate(data)
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
        ids = report.kept
    if not ids:
        raise ConfigError(f"{where} keeps no task: widen --min-pass and --max-pass, or select among more tasks.")
    if len(set(ids)) < len(ids):
        twice = sorted({one for one in ids if ids.count(one) > 1})
        raise ConfigError(f"{where} names tasks more than once: {_some(twice)}.")
    return list(ids)


def training_tasks(bench: Workbench, instances: Path | None) -> Iterator[Task]:
    """The tasks to train on, again from the start when they run out: all, or those that a file keeps.

    Raises `ConfigError` where the source does not have one of them.
    """
    return bench.take_tasks(TRAIN) if instances is None else itertools.cycle(chosen_tasks(bench, instances))


def chosen_tasks(bench: Workbench, instances: Path) -> list[Task]:
    """The tasks of the split `train` that a file keeps, in the source's order. Raises `ConfigError` where one is missing."""
    wanted = set(read_instances(instances))
    found: dict[str, Task] = {}
    for task in itertools.islice(bench.tasks_once(TRAIN), MOST_TASKS):
        if task.id in wanted:
            found.setdefault(task.id, task)
            if len(found) == len(wanted):
                return list(found.values())
    raise ConfigError(
        f"rl.instances: {instances} names tasks that the source '{bench.config.tasks.use}' does not have in its split "
        f"'{TRAIN}': {_some(sorted(wanted - set(found)))}. Select again with the source as it is set now."
    )


def _some(ids: list[str]) -> str:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return ", ".join(ids[:SHOWN]) + more
