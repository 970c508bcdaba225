"""The stages of reinforcement learning that a run may have: the whole loop, or one phase of it (`--only`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ale.task import Task
from ale.trajectory import Trajectory
from ale_train.config.checks import check_policy_to_train, check_trainer
from ale_train.config.rl import RLConfig
from ale_train.config.run import RunConfig
from ale_train.rl.checks import check_algorithm, check_groups, check_multiplex, check_policy_to_sample
from ale_train.rl.device_sharing import require_elastic
from ale_train.rl.fork import Fork
from ale_train.rl.loop import reinforce
from ale_train.rl.single_phase import roll_out_only, train_only
from ale_train.rl.task_selection import read_instances, repeat_tasks
from ale_train.workbench.training_stage import TrainingStage
from ale_train.workbench.workbench import Workbench


class Reinforcement(TrainingStage):
    """Runs `rl`: rollouts and updates, step by step, with evaluations between and after them."""

    def __init__(self, config: RLConfig, fork: Fork | None = None) -> None:
        self._config, self._fork = config, fork
        self._tasks: Iterator[Task] = iter(())
        self._demonstrations: Sequence[Trajectory] = ()

    def check(self, config: RunConfig) -> None:
        """Check the file of tasks, and the algorithm's objections to the run."""
        if self._config.instances is not None:
            read_instances(self._config.instances)
        check_algorithm(config, self._config, demonstrations=self._fork is not None or config.sft is not None)
        if self._config.resample_even_groups:
            check_groups(config)
        check_multiplex(config, self._config)
        if self._fork is None:
            check_policy_to_train(config)
        else:  # its checkpoint holds the policy
            check_trainer(config)

    def check_tasks(self, bench: Workbench) -> None:
        """Check also the engines, which are known by now."""
        if self._config.multiplex:
            require_elastic(bench.engine, self._config.multiplex)
        self._tasks = repeat_tasks(bench, self._config.instances)

    def prepare(self, bench: Workbench, demonstrations: Sequence[Trajectory]) -> None:
        self._demonstrations = demonstrations

    async def train(self, bench: Workbench) -> None:
        await reinforce(bench, self._config, self._tasks, self._demonstrations)


class RolloutOnly(TrainingStage):
    """Runs `--only rollout`: it stores the rollouts of `rl.steps` steps, all with one policy, in a run folder."""

    def __init__(self, config: RLConfig, source: Path | None) -> None:
        self._config, self._source = config, source

    def check(self, config: RunConfig) -> None:
        if self._config.instances is not None:
            read_instances(self._config.instances)
        check_algorithm(config, self._config, demonstrations=False)
        check_policy_to_sample(config, self._source)

    async def train(self, bench: Workbench) -> None:
        await roll_out_only(bench, self._config, self._source)


class TrainOnly(TrainingStage):
    """Runs `--only train`: it makes updates on the rollouts that another run has stored."""

    def __init__(self, config: RLConfig, source: Path) -> None:
        self._config, self._source = config, source

    async def train(self, bench: Workbench) -> None:
        await train_only(bench, self._config, self._source)
