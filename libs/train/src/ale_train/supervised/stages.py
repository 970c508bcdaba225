"""The two supervised stages, for the sections `cpt` and `sft` of a run file."""

from __future__ import annotations

from collections.abc import Sequence

from ale.trajectory import Trajectory
from ale_train.config.checks import check_policy_to_train
from ale_train.config.run import RunConfig
from ale_train.config.supervised import CPTConfig, SFTConfig
from ale_train.evaluation.evaluate import evaluate_policy
from ale_train.supervised.demonstrations import check_paths
from ale_train.supervised.pretraining import check_texts, pretrain
from ale_train.supervised.sft import fine_tune, gather_demonstrations, select_data
from ale_train.workbench.training_stage import TrainingStage
from ale_train.workbench.workbench import Workbench


class Pretraining(TrainingStage):
    """Runs `cpt`: the policy learns to predict every token of a text."""

    def __init__(self, config: CPTConfig) -> None:
        self._config = config

    def check(self, config: RunConfig) -> None:
        """Refuse text that does not exist, and sequences that are too long for the model."""
        check_policy_to_train(config)
        check_texts(self._config, config.model)

    async def train(self, bench: Workbench) -> None:
        await pretrain(bench, self._config)


class FineTuning(TrainingStage):
    """Runs `sft`: the policy learns from demonstrations, in one stage or several."""

    def __init__(self, config: SFTConfig) -> None:
        self._config = config
        self._gathered: list[list[Trajectory]] = []
        self._selected: list[list[Trajectory]] = []

    def check(self, config: RunConfig) -> None:
        """Refuse data that do not exist."""
        check_policy_to_train(config)
        check_paths(self._config.demonstrations.data, "sft.demonstrations.data")
        for i, stage in enumerate(self._config.stages):
            check_paths(stage.data, f"sft.stages.{i}.data")

    async def gather(self, bench: Workbench) -> list[Trajectory]:
        self._gathered = await gather_demonstrations(bench, self._config)
        return [*{id(t): t for stage in self._gathered for t in stage}.values()]

    def prepare(self, bench: Workbench, demonstrations: Sequence[Trajectory]) -> None:
        """Select the data of each stage."""
        self._selected = select_data(bench, self._config, self._gathered)

    async def train(self, bench: Workbench) -> None:
        await evaluate_policy(bench, "before_sft", -1)
        await fine_tune(bench, self._config, self._selected)
