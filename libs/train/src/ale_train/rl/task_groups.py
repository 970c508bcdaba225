"""The rollouts of one task on their way through the producer: admitted, planned, finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ale.specs.algorithm import RolloutRequest
from ale.task import Task
from ale.trajectory import Trajectory
from ale_train.rl.sample_buffer import OpenGroup


@dataclass(slots=True)
class TaskGroup:
    """A task that was admitted to the buffer, with the rollouts that were planned for it."""

    ordinal: int
    nth: int
    """The number of the task among those that were taken from the source."""
    task: Task
    again: bool
    """Whether a group of the task was dropped before."""
    step: int = 0
    requests: list[RolloutRequest] = field(default_factory=list)
    """The rollouts that were planned for it, in the step `step`."""

    def state(self, group: OpenGroup[Trajectory], diverged: bool) -> dict[str, Any]:
        """Return the task and its group as JSON values. Requests with a start cannot be written. A group without
        a trusted rollout is made again, because the fault may be over, unless it never reached its start."""
        plain = all(request.start is None for request in self.requests)
        made = group.rollouts or (() if diverged and group.rollouts is not None else None)
        return {
            "ordinal": self.ordinal,
            "nth": self.nth,
            "again": self.again,
            "version": group.version,
            "step": self.step,
            "requests": [[request.group, request.seed] for request in self.requests if plain],
            "rollouts": None if made is None else [trajectory.id for trajectory in made],
        }


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """The rollouts of an ordinal that no plan has seen, and the names of its groups."""

    ordinal: int
    rollouts: Sequence[Trajectory]
    groups: frozenset[str]

    def state(self) -> dict[str, Any]:
        """Return it as JSON values, the rollouts by their ids."""
        rollouts = [trajectory.id for trajectory in self.rollouts]
        return {"ordinal": self.ordinal, "rollouts": rollouts, "groups": sorted(self.groups)}
