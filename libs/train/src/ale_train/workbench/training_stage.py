"""The contract of a training stage. `cpt` and `sft` are in `ale_train.supervised`, `rl` in `ale_train.rl`.
`ale_train.pipeline.stages` makes those of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ale.trajectory import Trajectory
from ale_train.config.run import RunConfig
from ale_train.workbench.workbench import Workbench


class TrainingStage(ABC):
    """One training stage; each run makes a new instance."""

    def check(self, config: RunConfig) -> None:  # noqa: B027
        """Refuse a run that could not work, before anything starts. Raises `ConfigError`."""

    def check_tasks(self, bench: Workbench) -> None:  # noqa: B027
        """Refuse tasks that the source does not have, after the source has started and before any stage works. Raises
        `ConfigError`."""

    async def gather(self, bench: Workbench) -> list[Trajectory]:
        """Return the stage's demonstrations; the tokenizer of a scratch model is trained on them too."""
        return []

    def prepare(self, bench: Workbench, demonstrations: Sequence[Trajectory]) -> None:  # noqa: B027
        """Inspect what all stages have gathered, after the policy is loaded and before anything is trained. Raises
        `AleError`."""

    @abstractmethod
    async def train(self, bench: Workbench) -> None:
        """Train, and publish the weights to the engine."""
