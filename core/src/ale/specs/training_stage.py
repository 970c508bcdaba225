"""A training stage, as its section of the run file makes it (`StageSection.stage`). Packages define them: `cpt` and
`sft` are in ale-supervised, and `rl` is in ale-rl.

A stage gets the run's configuration (`ale.config.run.RunConfig`) and, when it works, the run's open parts
(`ale.pipeline.workbench.Workbench`). Both are above this floor, so their types are `Any` here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ale.trajectory import Trajectory


class TrainingStage(ABC):
    """One training stage; each run makes a new instance."""

    def check(self, config: Any) -> None:  # noqa: B027
        """Refuse a run that could not work, before anything starts. Raises `ConfigError`."""

    def check_tasks(self, bench: Any) -> None:  # noqa: B027
        """Refuse tasks that the source does not have, after the source has started and before any stage works. Raises
        `ConfigError`."""

    async def gather(self, bench: Any) -> list[Trajectory]:
        """Return the stage's demonstrations; the tokenizer of a scratch model is trained on them too."""
        return []

    def prepare(self, bench: Any, demonstrations: Sequence[Trajectory]) -> None:  # noqa: B027
        """Inspect what all stages have gathered, after the policy is loaded and before anything is trained. Raises
        `AleError`."""

    @abstractmethod
    async def train(self, bench: Any) -> None:
        """Train, and publish the weights to the engine."""
