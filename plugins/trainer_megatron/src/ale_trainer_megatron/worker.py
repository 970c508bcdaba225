"""One rank of the trainer `megatron`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ale_trainer_megatron import megatron_imports  # noqa: F401

# isort: split
from ale_torch.ranks.world import World
from ale_torch.training.worker import RankWorker
from ale_trainer_megatron.cpu import run_on_cpu
from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.learner import Learner

if TYPE_CHECKING:
    from ale_trainer_megatron.trainer import MegatronTrainer


class Worker(RankWorker[Learner]):
    """A learner of a layout."""

    def __init__(self, world: World, device: str, how: MegatronTrainer.Config) -> None:
        super().__init__(world, device)
        self._how = how
        if self.device.type == "cpu":
            run_on_cpu()
        self._layout = Layout(world, how.tensor_parallel, how.pipeline_parallel, how.sequence_parallel)
        self._layout.start(self.device)

    @property
    def settings(self) -> dict[str, Any]:
        # The trainer `torch` goes on from what this one saves, and the other way round.
        fixed = {"trainer.lora": None, "trainer.optimizer": "adamw", "trainer.value_head": False}
        return {"trainer.dtype": self._how.dtype, **fixed}

    def make_learner(self, folder: Path) -> Learner:
        return Learner(folder, self.device, self._how, self._layout)
