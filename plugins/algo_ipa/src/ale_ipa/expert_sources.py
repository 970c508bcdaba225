"""Gathers experts besides the policy's own successes: from the run's demonstrations and from run folders. For a task
without an expert, the task source's demonstrator is asked when the task is next to be rolled out.

Only a trajectory that passed and that began at the task's beginning is an expert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ale.errors import ConfigError
from ale.specs.algorithm import RolloutHistory, RolloutRequest
from ale.specs.start import Demonstration
from ale.store.run_store import RunStore
from ale.task import TRAIN, Task
from ale.trajectory import Trajectory
from ale_ipa.experts import ExpertStore
from ale_ipa.settings import ExpertsConfig


class ExpertSources:
    """Adds experts to `store`, in the policy's tokens, when their tasks are next to be rolled out."""

    def __init__(self, config: ExpertsConfig, store: ExpertStore, event: Callable[..., None]) -> None:
        self._config = config
        self._store = store
        self._event = event
        self._waiting: dict[str, list[Trajectory]] | None = None
        """For each task, the trajectories in the order of their making; None before anything was read."""
        self._tries: Counter[str] = Counter()
        """For each task, how often the demonstrator was asked."""
        self._counted = False

    def take(self, tasks: Sequence[Task], history: RolloutHistory) -> None:
        """Add the experts of these tasks to the store; log, at the first call, how many of the tasks have one."""
        self._bring(tasks, history)
        if self._counted:
            return
        self._counted = True
        ids = {task.id for task in tasks}
        known = len(ids & self._store.outside)
        self._event("note", text=f"experts: {known} of the {len(ids)} tasks of step {history.step} have one")

    def ask(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
        """Request demonstrations of the tasks that have no expert; `history.prepared` holds the ones made last."""
        self._bring(tasks, history)
        for trajectory in filter(_is_expert, history.prepared):
            self._store.add(trajectory)
        missing = list({task.id: task for task in tasks if task.id not in self._store.outside}.values())
        requests: list[RolloutRequest] = []
        while not requests:
            missing = [task for task in missing if self._tries[task.id] < self._config.demonstrate]
            if not missing:
                break
            for i, task in enumerate(missing):
                attempt = self._tries[task.id]
                self._tries[task.id] += 1
                seed = ((history.seed * 1_000_003 + 700_001 + history.step) * 1_009 + i) * 1_009 + attempt
                demonstrator = partial(history.demonstrator, task, seed)
                if demonstrator() is not None:
                    name = f"expert.{history.step}.{attempt}.{i}"
                    requests.append(RolloutRequest(task, name, seed, Demonstration(demonstrator)))
        return requests

    def state(self) -> dict[str, Any]:
        """Return how often each task's demonstrator was asked; the store keeps the experts themselves."""
        return dict(self._tries)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._tries = Counter(dict(state))

    def _bring(self, tasks: Sequence[Task], history: RolloutHistory) -> None:
        if self._waiting is None:
            self._waiting = self._read(history.demonstrations)
        for task in tasks:
            for trajectory in self._waiting.pop(task.id, ()):
                self._store.add(history.retokenize(trajectory))

    def _read(self, demonstrations: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
        found: list[Trajectory] = list(filter(_is_expert, demonstrations)) if self._config.demonstrations else []
        for folder in self._config.data:
            with RunStore.open(folder) as store:
                kept = store.trajectories("split = ? AND rejected IS NULL", (TRAIN,))
                experts = list(filter(_is_expert, kept))
            if not experts:
                raise ConfigError(
                    f"algorithm.experts.data: {folder} holds no trajectory of the split '{TRAIN}' that passed."
                )
            found += experts
        by_task: dict[str, list[Trajectory]] = {}
        for trajectory in found:
            by_task.setdefault(trajectory.task_id, []).append(trajectory)
        return by_task


def _is_expert(trajectory: Trajectory) -> bool:
    return trajectory.passed and trajectory.rejected is None and not trajectory.start_chunk
