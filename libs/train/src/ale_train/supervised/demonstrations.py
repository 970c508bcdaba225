"""This module makes demonstrations: every command is really run in a sandbox, and every reward is computed."""

from __future__ import annotations

from functools import partial

from ale.errors import AleError, ConfigError
from ale.rollout.episode import DEMONSTRATIONS_STAGE, StageInfo
from ale.specs.algorithm import RolloutRequest
from ale.specs.start import Demonstration
from ale.task import TRAIN
from ale.trajectory import Trajectory
from ale_train.workbench.workbench import Workbench


async def run_demonstrations(bench: Workbench, count: int) -> list[Trajectory]:
    """Run `count` demonstrations by the task source's demonstrator. Raises `ConfigError` if the source has none."""
    requests = []
    tasks = bench.take_tasks(TRAIN)
    for i in range(count):
        task = next(tasks)
        seed = bench.config.seed * 1_000_003 + i
        demonstrator = partial(bench.tasks.demonstrator, task, seed)
        if demonstrator() is None:
            raise ConfigError(
                f"The task source '{bench.config.tasks.use}' has no demonstrator for the task '{task.id}'; "
                "leave out 'sft' and start from a trained model (model.path), or use a task source that has one."
            )
        requests.append(RolloutRequest(task, f"demo.{i}", seed, Demonstration(demonstrator)))
    bench.progress.stage("demonstrations", count)
    with bench.stopwatch("demonstrations"):
        done = await bench.rollouts.run(requests, StageInfo(DEMONSTRATIONS_STAGE, 0, TRAIN, 1.0))
    if not done:
        raise AleError(
            f"No demonstration could be run: {bench.store.reasons(DEMONSTRATIONS_STAGE, 0)}. The trajectories of the "
            "run say more."
        )
    return done
