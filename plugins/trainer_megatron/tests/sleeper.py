"""A rank on a CPU that sleeps as one on a GPU does."""

from __future__ import annotations

from ale_torch.training.sleep import Asleep, storages_of
from ale_trainer_megatron.worker import Worker


class Sleeper(Worker):
    """A worker that moves its tensors out of memory and reports how much it holds."""

    def sleep(self) -> bool:
        """Sleep."""
        self._asleep = Asleep(self.learner.tensors(), "cpu")
        return True

    def bytes_held(self) -> int:
        """Count what it has in the device's memory, without waking."""
        assert self._learner is not None
        return sum(storage.nbytes() for storage in storages_of(self._learner.tensors()))
