"""Judges which tasks are fit for reinforcement learning (paper 3.2.3), and defines the file format of the result.

An instance is kept if its tests fail on the untouched environment, its reference solution passes, neither verdict
changes over repeated runs, and the policies' mean pass rate is between `min_pass` and `max_pass`. Of an instance whose
reward judges what an agent said, only the pass rate can be known. `qualify` makes the
rollouts that are judged here; `rl.instances` reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from pydantic import BaseModel, ConfigDict, Field

from ale.task import Task


class Record(BaseModel):
    """Base class of the file's records."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Checks(Record):
    """The verdicts of repeated scoring, each in a fresh sandbox: on the untouched environment, and after the reference
    solution."""

    untouched: tuple[bool, ...] = ()
    solution: tuple[bool, ...] | None = Field((), description="null: the task has no reference solution.")
    problem: str = Field("", description="Why parts could not be scored.")
    not_scored: str = Field("", description="Why nothing was scored, if the task was only read.")


class Rate(Record):
    """How often one policy passed."""

    passed: int = Field(ge=0)
    attempts: int = Field(ge=0)


class Limits(Record):
    """The mean pass rates between which an instance is kept, inclusive."""

    min_pass: float = Field(0.1, ge=0, le=1)
    max_pass: float = Field(0.9, ge=0, le=1)


class Instance(Record):
    """One task and its judgement; `reason` says why it was dropped."""

    id: str
    tags: tuple[str, ...] = ()
    kept: bool
    reason: str = ""
    pass_rate: float | None = Field(
        None, description="Mean over the policies; null: one has no scored attempt, or there is none."
    )
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
    def kept_ids(self) -> list[str]:
        """The ids to train on."""
        return [instance.id for instance in self.instances if instance.kept]


def why_unsound(checks: Checks) -> str:
    """Return why a task's verdicts cannot be trusted; an empty string if they can."""
    for what, verdicts in (
        ("on the untouched environment", checks.untouched),
        ("on its reference solution", checks.solution or ()),
    ):
        if len(set(verdicts)) > 1:
            return f"the verdict changes {what}: {sum(verdicts)} of {len(verdicts)} runs passed"
    if any(checks.untouched):
        return "its tests pass on the untouched environment"
    if checks.solution and not any(checks.solution):
        return "its reference solution does not pass"
    return f"it could not be checked: {checks.problem}" if checks.problem else ""


def mean_rate(rates: Mapping[str, Rate]) -> float | None:
    """Compute the mean of the policies' pass rates; None without policies, or if a policy has no scored attempt."""
    if not rates or any(rate.attempts == 0 for rate in rates.values()):
        return None
    return float(sum(Fraction(rate.passed, rate.attempts) for rate in rates.values()) / len(rates))


def judge(task: Task, checks: Checks, rates: Mapping[str, Rate], limits: Limits) -> Instance:
    """Decide whether to keep a task. Without `rates` only its checks decide."""
    reason, rate = why_unsound(checks), mean_rate(rates)
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
