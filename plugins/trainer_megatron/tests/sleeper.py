"""A rank on a CPU that sleeps as one on a GPU does."""

from __future__ import annotations

from ale_torch_training.asleep import Asleep
from ale_trainer_megatron.worker import Worker


class Sleeper(Worker):
    """See the module."""

    def sleep(self) -> bool:
        """Sleep."""
        self._asleep = Asleep(self.learner.kept(), "cpu")
        return True

    def bytes_kept(self) -> int:
        """Count what is kept in the device's memory, without waking."""
        assert self._learner is not None
        return sum(tensor.untyped_storage().nbytes() for tensor in self._learner.kept())
