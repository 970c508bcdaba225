"""One rank of the trainer `torch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ale.specs.trainer import TrainBatch
from ale_torch.ranks.world import World
from ale_torch.training.worker import RankWorker
from ale_trainer_torch.learner import Learner
from ale_trainer_torch.optimizer import Optimization


class Worker(RankWorker[Learner]):
    """A learner of `Optimization`."""

    def __init__(self, world: World, device: str, how: Optimization) -> None:
        super().__init__(world, device)
        self._how = how

    @property
    def settings(self) -> dict[str, Any]:
        return self._how.settings

    def make_learner(self, folder: Path) -> Learner:
        return Learner(folder, self.device, self._how, self.world)

    def values(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        return self.learner.values(batch)
