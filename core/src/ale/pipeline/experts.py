"""Experts: trajectories from whose chunks an algorithm may start rollouts (chunk-level initialized sampling, 3.2.4.4).

They come from outside the policy: demonstrations of the warm start, run folders, and, for a task of which none is known,
the task source's demonstrator, asked when the task's turn comes. Only what passed its tests counts. What an algorithm
makes of them, and when its own successes take their place, is its own affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ale.errors import ConfigError
from ale.pipeline.bootstrap import retokenize
from ale.pipeline.workbench import Workbench
from ale.rollout.episode import EXPERTS_STAGE, Stage
from ale.run_config import ExpertsConfig
from ale.specs.algorithm import RolloutRequest
from ale.store import RunStore
from ale.task import TRAIN, Task
from ale.trajectory import Trajectory


class Experts:
    """What is known of tasks, in the policy's tokens."""

    def __init__(self, bench: Workbench, config: ExpertsConfig, demonstrations: Iterable[Trajectory] = ()) -> None:
        self._bench = bench
        self._tries = config.demonstrate
        self._given: dict[str, list[Trajectory]] = {}
        """As they came; put into the policy's tokens when the task's turn comes."""
        self._known: dict[str, list[Trajectory]] = {}
        self._asked: set[str] = set()
        self._told = False
        if config.demonstrations:
            _add(self._given, demonstrations)
        for folder in config.data:
            with RunStore.open(folder) as store:
                found = _add(self._given, store.trajectories("split = ? AND rejected IS NULL", (TRAIN,)))
            if not found:
                raise ConfigError(f"rl.experts.data: {folder} holds no trajectory of the split '{TRAIN}' that passed.")

    async def of(self, tasks: Sequence[Task], step: int) -> Mapping[str, Sequence[Trajectory]]:
        """The experts of these tasks; those of which none is known are demonstrated first."""
        tokenizer, form = self._bench.endpoint.tokenizer, self._bench.endpoint.form
        for task in tasks:
            for given in self._given.pop(task.id, ()):
                self._known.setdefault(task.id, []).append(retokenize(given, tokenizer, form))
        missing = {task.id: task for task in tasks if task.id not in self._known and task.id not in self._asked}
        self._asked |= missing.keys()
        for attempt in range(self._tries):
            left = [task for name, task in missing.items() if name not in self._known]
            if not left:
                break
            _add(self._known, await self._demonstrate(left, step, attempt))
        found = {task.id: tuple(self._known[task.id]) for task in tasks if task.id in self._known}
        if not self._told:
            self._told = True
            count = len({task.id for task in tasks})
            self._bench.progress.note(f"experts: {len(found)} of the {count} tasks of step {step} have one")
        return found

    async def _demonstrate(self, tasks: Sequence[Task], step: int, attempt: int) -> list[Trajectory]:
        bench = self._bench
        requests, responders = [], []
        for i, task in enumerate(tasks):
            seed = ((bench.config.seed * 1_000_003 + 700_001 + step) * 1_009 + i) * 1_009 + attempt
            responder = bench.tasks.demonstrator(task, seed)
            if responder is not None:
                requests.append(RolloutRequest(task, f"expert.{step}.{attempt}.{i}", seed))
                responders.append(responder)
        return await bench.rollouts.run(requests, Stage(EXPERTS_STAGE, step, TRAIN, 1.0), responders)


def _add(known: dict[str, list[Trajectory]], trajectories: Iterable[Trajectory]) -> int:
    """Keep, by task, what passed from the beginning; returns how many did."""
    count = 0
    for trajectory in trajectories:
        if trajectory.passed and trajectory.rejected is None and not trajectory.start_chunk:
            known.setdefault(trajectory.task_id, []).append(trajectory)
            count += 1
    return count
