"""Keeps the experts of a run: those from other sources, and the policy's own successes.

An expert is a trajectory of the task that passed. Rollouts use the expert with the fewest chunks that was not dropped.
Every few steps, the policy's shortest new success from the beginning becomes an expert if it is shorter than that one.
A task without an expert gets one in this way only if less than half of its rollouts from the beginning passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ale.store.encoding import trajectory_from_dict, trajectory_to_dict
from ale.trajectory import Trajectory
from ale_torch.losses.groups import select_trusted

MASTERED = 0.5
"""A task with at least this success rate from the beginning needs no expert."""


def chunk_count(expert: Trajectory) -> int:
    """Return how many chunks of the expert can be replayed: all of them except side calls."""
    return len(expert.turns)


@dataclass
class SavedTrajectories:
    """Holds the trajectories that a saved state refers to, each of them once."""

    trajectories: list[Trajectory] = field(default_factory=list)

    def number(self, trajectory: Trajectory) -> int:
        """Return the trajectory's place in the table; a new trajectory is added at the end."""
        for number, known in enumerate(self.trajectories):
            if known is trajectory or (known.id == trajectory.id and known == trajectory):
                return number
        self.trajectories.append(trajectory)
        return len(self.trajectories) - 1

    def state(self) -> list[dict[str, Any]]:
        """Return the whole table as JSON values."""
        return [trajectory_to_dict(t) for t in self.trajectories]

    @classmethod
    def of(cls, state: Sequence[Mapping[str, Any]]) -> SavedTrajectories:
        """Make the table again from what `state` returned."""
        return cls([trajectory_from_dict(t) for t in state])


@dataclass(slots=True)
class _Tried:
    """Counts a task's rollouts from the beginning since the last refresh, and keeps the shortest that passed."""

    rollouts: int = 0
    passed: int = 0
    shortest: Trajectory | None = None


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The policy's own success replaced an expert that had `chunks_before` chunks (None: there was no expert)."""

    expert: Trajectory
    chunks_before: int | None


class ExpertStore:
    """Keeps the experts, with at most one success of the policy per task; `dropped` holds ids of dropped experts."""

    def __init__(self, refresh_every: int) -> None:
        self._every = refresh_every
        self._refreshed_at: int | None = None
        self._outside: dict[str, tuple[Trajectory, ...]] = {}
        self._own: dict[str, Trajectory] = {}
        self._tried: dict[str, _Tried] = {}
        self.dropped: set[str] = set()

    def add(self, expert: Trajectory) -> None:
        """Add an expert from another source than the policy, unless the store already has it."""
        known = self._outside.get(expert.task_id, ())
        if all(other.id != expert.id for other in known):
            self._outside[expert.task_id] = (*known, expert)

    @property
    def outside(self) -> Set[str]:
        """The tasks that have an expert from another source than the policy."""
        return self._outside.keys()

    def of(self, task_id: str) -> Trajectory | None:
        """Return the expert that rollouts of a task use, or None if no expert of it has a chunk to replay."""
        return min(self.usable(task_id), key=chunk_count, default=None)

    def usable(self, task_id: str) -> list[Trajectory]:
        """Return all experts of a task that have a chunk to replay and were not dropped."""
        own = self._own.get(task_id)
        known = [*self._outside.get(task_id, ()), *([own] if own else [])]
        return [expert for expert in known if expert.id not in self.dropped and chunk_count(expert)]

    @property
    def tasks(self) -> set[str]:
        """The tasks that have an expert, including experts that were dropped."""
        return self._outside.keys() | self._own.keys()

    def drop(self, expert_id: str) -> None:
        """Stop using an expert."""
        self.dropped.add(expert_id)
        self._own = {task_id: own for task_id, own in self._own.items() if own.id != expert_id}

    def note(self, trajectories: Sequence[Trajectory]) -> None:
        """Record which new rollouts from the beginning passed. Call it once for each rollout."""
        if not self._every:
            return
        for t in select_trusted(trajectories):
            if t.start_chunk:
                continue
            tried = self._tried.setdefault(t.task_id, _Tried())
            tried.rollouts += 1
            tried.passed += t.passed
            if t.passed and (tried.shortest is None or chunk_count(t) < chunk_count(tried.shortest)):
                tried.shortest = t

    def refresh(self, step: int) -> list[Refreshed]:
        """When a refresh is due, replace longer experts by the policy's own successes; return the replacements."""
        if self._refreshed_at is None:
            self._refreshed_at = step
        if not self._every or step - self._refreshed_at < self._every:
            return []
        self._refreshed_at = step
        tried, self._tried = self._tried, {}
        taken = []
        for task_id, seen in tried.items():
            if seen.shortest is None:
                continue
            now = self.of(task_id)
            if now is None and seen.passed >= MASTERED * seen.rollouts:
                continue
            if now is None or chunk_count(seen.shortest) < chunk_count(now):
                self._own[task_id] = seen.shortest
                taken.append(Refreshed(seen.shortest, None if now is None else chunk_count(now)))
        return taken

    def state(self, table: SavedTrajectories) -> dict[str, Any]:
        """Return the store's state as JSON values; a trajectory is written as its number in the table."""
        return {
            "refreshed_at": self._refreshed_at,
            "outside": {task_id: [table.number(t) for t in known] for task_id, known in self._outside.items()},
            "own": {task_id: table.number(own) for task_id, own in self._own.items()},
            "tried": {
                task_id: [t.rollouts, t.passed, None if t.shortest is None else table.number(t.shortest)]
                for task_id, t in self._tried.items()
            },
            "dropped": sorted(self.dropped),
        }

    def restore(self, state: Mapping[str, Any], table: SavedTrajectories) -> None:
        """Replace the store's state by an earlier one."""
        known = table.trajectories
        self._refreshed_at = state["refreshed_at"]
        self._outside = {task_id: tuple(known[i] for i in numbers) for task_id, numbers in state["outside"].items()}
        self._own = {task_id: known[i] for task_id, i in state["own"].items()}
        self._tried = {
            task_id: _Tried(rollouts, passed, None if shortest is None else known[shortest])
            for task_id, (rollouts, passed, shortest) in state["tried"].items()
        }
        self.dropped = set(state["dropped"])
