"""One rank of the trainer: what `TorchTrainer` calls, in its own process or in a process of the rank's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.errors import ConfigError, TrainerError
from ale.specs.engine import FolderTicket, MemoryTicket, PolicyVersion, Ticket
from ale.specs.trainer import LossFunction, PolicyRole, TrainBatch
from ale_ranks.world import World
from ale_trainer_torch.checkpoint import read_checkpoint, write_checkpoint, write_weights
from ale_trainer_torch.learner import Learner
from ale_trainer_torch.optimizer import Optimization

if TYPE_CHECKING:
    from ale_weight_transfer.sender import WeightSender


class Worker:
    """A learner on a device, and the ways by which its weights leave. All ranks make the same calls."""

    def __init__(self, world: World, device: str, how: Optimization) -> None:
        self._world = world
        self._device = torch.device(device)
        if self._device.type == "cuda" and world.size > 1:
            self._device = torch.device("cuda", world.rank)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._how = how
        self._learner: Learner | None = None
        self._sender: WeightSender | None = None
        self._shared: list[dict[str, Tensor]] = []
        """The newest two versions that were published by `ipc`: another process reads them in this one's memory."""

    @property
    def learner(self) -> Learner:
        """The model that is trained. Raises `TrainerError` if none was loaded."""
        if self._learner is None:
            raise TrainerError("The trainer 'torch' has no model yet; call load or restore first.")
        return self._learner

    def load(self, folder: Path, policy: PolicyRole) -> None:
        """See `TrainerBackend.load`."""
        if policy == "reference":
            self.learner.read_reference(folder)
        else:
            self._learner = Learner(folder, self._device, self._how, self._world)

    def logprobs(self, batch: TrainBatch, policy: PolicyRole) -> npt.NDArray[np.float32]:
        """See `TrainerBackend.logprobs`."""
        return self.learner.logprobs(batch, policy)

    def values(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """See `TrainerBackend.values`."""
        return self.learner.values(batch)

    def update(
        self, batch: TrainBatch, loss: LossFunction, lr: float | None, weight_decay: float | None
    ) -> dict[str, float]:
        """See `TrainerBackend.update`."""
        return self.learner.update(batch, loss, lr, weight_decay)

    def publish(self, transport: str, folder: Path) -> PolicyVersion | None:
        """See `TrainerBackend.publish`; only rank 0 returns the version."""
        learner = self.learner
        version = learner.version + 1
        weights = learner.weights()
        ticket = self._ticket(learner, weights, transport, version, folder) if self._world.rank == 0 else None
        learner.version = version
        return None if ticket is None else PolicyVersion(version, ticket)

    def save(self, folder: Path) -> None:
        """See `TrainerBackend.save`."""
        write_checkpoint(folder, self.learner)

    def restore(self, folder: Path) -> None:
        """See `TrainerBackend.restore`."""
        self._learner = read_checkpoint(folder, self._device, self._how, self._world)

    def close(self) -> None:
        """Stop sending weights, and drop the model."""
        if self._sender is not None:
            self._sender.close()
        self._sender, self._learner = None, None
        self._shared.clear()

    def _ticket(
        self, learner: Learner, weights: dict[str, Tensor], transport: str, version: int, folder: Path
    ) -> Ticket:
        match transport:
            case "memory":
                return MemoryTicket(weights)
            case "folder":
                return FolderTicket(write_weights(folder / str(version), learner, weights))
            case "ipc":
                from ale_weight_transfer.sender import share_by_ipc

                self._shared = [*self._shared[-1:], weights]
                return share_by_ipc(version, weights)
            case _:
                from ale_weight_transfer.sender import WeightSender

                self._sender = self._sender or WeightSender(transport)
                return self._sender.offer(version, weights)


def pick_device(name: str, ranks: int = 1) -> str:
    """Return the device of `trainer.device`; of several ranks each takes the GPU of its number. Raises `ConfigError` if
    there are too few."""
    count = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if torch.cuda.is_available() and ranks <= count else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"trainer.device is '{name}', but torch sees {count} CUDA devices; "
            "set it to auto or cpu, or install a build of torch with CUDA."
        )
    if device.type == "cuda" and ranks > 1 and (device.index is not None or ranks > count):
        raise ConfigError(
            f"trainer.ranks is {ranks} and trainer.device '{name}': each rank takes a GPU of its own, from the first "
            f"on, and torch sees {count}. Set trainer.device to cuda and trainer.ranks to at most {count}."
        )
    return name
