"""The experts of a run: those from outside, and the policy's own successes.

An expert of a task is a trajectory that passed. The one in use is the shortest in chunks that was not dropped. Every few
steps the shortest success that the policy had from the beginning since the last time joins them, where it is shorter
than the expert in use. A task without an expert gets one in this way only where the policy needs it: where less than
half of its rollouts from the beginning passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ale.trajectory import Trajectory
from ale_policy_loss.groups import trusted

MASTERED = 0.5
"""Success rate from the beginning from which on a task without an expert needs none."""


def chunk_count(expert: Trajectory) -> int:
    """How many chunks of it can be replayed: all but side calls."""
    return len(expert.turns)


@dataclass(slots=True)
class _Tried:
    """What became of a task's rollouts from the beginning since the last refresh."""

    rollouts: int = 0
    passed: int = 0
    shortest: Trajectory | None = None


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The policy's own success takes the place of an expert that had `chunks_before` chunks (None: there was none)."""

    expert: Trajectory
    chunks_before: int | None


class ExpertStore:
    """Keeps one own success a task at most; `dropped` are the ids of experts that are used no more."""

    def __init__(self, refresh_every: int) -> None:
        self._every = refresh_every
        self._refreshed_at: int | None = None
        self._outside: dict[str, tuple[Trajectory, ...]] = {}
        self._own: dict[str, Trajectory] = {}
        self._tried: dict[str, _Tried] = {}
        self.dropped: set[str] = set()

    def learn(self, outside: Mapping[str, Sequence[Trajectory]]) -> None:
        """Hear of experts that do not come from the policy: all that are known of these tasks."""
        self._outside.update({task_id: tuple(experts) for task_id, experts in outside.items() if experts})

    def of(self, task_id: str) -> Trajectory | None:
        """The expert of a task, if it has one with a chunk to replay."""
        return min(self.usable(task_id), key=chunk_count, default=None)

    def usable(self, task_id: str) -> list[Trajectory]:
        """All that are known of a task, have a chunk to replay, and were not dropped."""
        own = self._own.get(task_id)
        known = [*self._outside.get(task_id, ()), *([own] if own else [])]
        return [expert for expert in known if expert.id not in self.dropped and chunk_count(expert)]

    @property
    def tasks(self) -> set[str]:
        """The tasks of which an expert is known, dropped ones included."""
        return self._outside.keys() | self._own.keys()

    def drop(self, expert_id: str) -> None:
        """Use this expert no more."""
        self.dropped.add(expert_id)
        self._own = {task_id: own for task_id, own in self._own.items() if own.id != expert_id}

    def note(self, trajectories: Sequence[Trajectory]) -> None:
        """Look at new rollouts for successes from the beginning. Call it once for each rollout."""
        if not self._every:
            return
        for t in trusted(trajectories):
            if t.start_chunk:
                continue
            tried = self._tried.setdefault(t.task_id, _Tried())
            tried.rollouts += 1
            tried.passed += t.passed
            if t.passed and (tried.shortest is None or chunk_count(t) < chunk_count(tried.shortest)):
                tried.shortest = t

    def refresh(self, step: int) -> list[Refreshed]:
        """Where it is time, let the policy's own successes take the place of longer experts; returns which did."""
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
