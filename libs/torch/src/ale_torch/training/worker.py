"""One rank of a trainer; `RankedTrainer` calls it, in the run's process or in a process of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.errors import ConfigError, TrainerError
from ale.specs.engine import FolderTicket, MemoryTicket, PolicyVersion, Ticket
from ale.specs.trainer import Loss, PolicyRole, TrainBatch
from ale_torch.ranks.world import World
from ale_torch.training.checkpoint_folder import (
    REFERENCE_FOLDER,
    read_state,
    recover_checkpoint,
    use_random_state,
    write_atomically,
    write_state,
)
from ale_torch.training.model_folder import use_folder_names, write_model
from ale_torch.training.saved_settings import read_model_settings, refuse_other_settings
from ale_torch.training.sleep import Asleep

if TYPE_CHECKING:
    from ale_torch.weights.sender import WeightSender


class Learner(Protocol):
    """A model that is trained, and its optimizer."""

    folder: Path
    """The model folder that the model was read from."""
    model: Any
    """A model of transformers that writes folders; its own weights are never used."""
    version: int

    def weights(self) -> dict[str, Tensor]:
        """Return copies of all weights by their Hugging Face names, on rank 0; tied ones share a copy."""
        ...

    def read_reference(self, folder: Path) -> None:
        """Read the reference policy from a model folder."""
        ...

    def write_reference(self, folder: Path) -> None:
        """Write the reference policy as a model folder, if there is one."""
        ...

    def write_optimizer(self, checkpoint: Path) -> None:
        """Write the state of training that is no model folder into the folder of a checkpoint."""
        ...

    def read_optimizer(self, checkpoint: Path) -> None:
        """Read what `write_optimizer` wrote. Raises `ConfigError` or `TrainerError`."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that stay between calls: the policy's, the optimizer's, the reference's."""
        ...

    def logprobs(self, batch: TrainBatch, role: PolicyRole) -> npt.NDArray[np.float32]: ...

    def update(
        self, batch: TrainBatch, loss: Loss, lr: float | None, weight_decay: float | None
    ) -> dict[str, float]: ...


L = TypeVar("L", bound=Learner)


class RankWorker(ABC, Generic[L]):
    """Holds a learner on a device and publishes its weights. All ranks make the same calls."""

    def __init__(self, world: World, device: str) -> None:
        self.world = world
        self.device = torch.device(device)
        if self.device.type == "cuda":
            if self.device.index is None:  # a rank on a cluster may see its own GPU alone, or all of its node
                self.device = torch.device("cuda", world.rank % max(1, torch.cuda.device_count()))
            torch.cuda.set_device(self.device)
        self._learner: L | None = None
        self._asleep: Asleep | None = None
        self._read: Callable[[], L] | None = None
        """Reads `_learner` again, while it is as it was read."""
        self._sender: WeightSender | None = None
        self._shared: list[dict[str, Tensor]] = []
        """The newest two versions that were published by `ipc`: another process reads them in this one's memory."""

    @abstractmethod
    def make_learner(self, folder: Path) -> L:
        """Read a model folder. Raises `ConfigError`."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings, by their names in a run file, that a checkpoint must have been saved with to be restored:
        those that decide what its weights mean (`saved_settings.REASONS` has a reason for each)."""

    @property
    def learner(self) -> L:
        """The model that is trained, awake. Raises `TrainerError` if none was loaded, or if another program has taken
        the memory meanwhile."""
        if self._learner is None:
            raise TrainerError("The trainer has no model yet; call load or restore first.")
        if self._asleep is not None:
            try:
                self._asleep.wake()
            except torch.OutOfMemoryError as error:
                raise TrainerError(
                    f"The trainer slept, and there is no room for it on {self.device} any more. Leave it more: lower "
                    "what the engine on this device may take (engine.gpu_memory), or rl.multiplex."
                ) from error
            self._asleep = None
        return self._learner

    def load(self, folder: Path, policy: PolicyRole) -> None:
        if policy == "reference":
            self.learner.read_reference(folder)
            self._read = None
        else:
            self._learner, self._read, self._asleep = self.make_learner(folder), None, None

    def sleep(self) -> bool:
        """Sleep on a GPU; on a CPU it would free nothing."""
        if self.device.type != "cpu" and self._learner is not None and self._asleep is None:
            self._asleep = Asleep(self._learner.tensors(), self.device.type)
        return self._asleep is not None and self._asleep.size > 0

    def logprobs(self, batch: TrainBatch, policy: PolicyRole) -> npt.NDArray[np.float32]:
        return self.learner.logprobs(batch, policy)

    def update(self, batch: TrainBatch, loss: Loss, lr: float | None, weight_decay: float | None) -> dict[str, float]:
        self._read = None
        return self.learner.update(batch, loss, lr, weight_decay)

    def publish(self, transport: str, folder: Path) -> PolicyVersion | None:
        """Publish the weights; only rank 0 returns the version."""
        self._read, learner = None, self.learner
        version = learner.version + 1
        weights = learner.weights()
        ticket = self._ticket(learner, weights, transport, version, folder) if self.world.rank == 0 else None
        learner.version = version
        return None if ticket is None else PolicyVersion(version, ticket)

    def save(self, folder: Path) -> None:
        learner, first = self.learner, self.world.rank == 0
        with write_atomically(folder, self.world) as new:
            weights = learner.weights()
            if first:
                write_model(new, learner.model, weights, learner.folder)
            del weights
            learner.write_reference(new / REFERENCE_FOLDER)
            learner.write_optimizer(new)
            if first:
                settings = {"trainer": self.settings, "model": read_model_settings(new)}
                write_state(new, learner.version, self.device, settings)

    def restore(self, folder: Path) -> None:
        """A run that goes on restores one checkpoint after another: what has not changed
        since it was restored is dropped first, so that there need not be room for two."""
        if self.world.rank == 0:
            recover_checkpoint(folder)
        self.world.barrier()
        before = self._read
        if before is not None:
            self._learner = self._asleep = None
        try:
            learner = self._restored(folder)
        except BaseException:
            if before is not None:
                self._learner = before()
            raise
        self._learner, self._read, self._asleep = learner, partial(self._restored, folder), None

    def _restored(self, folder: Path) -> L:
        state = read_state(folder)
        refuse_other_settings(folder, state["settings"], self.settings, read_model_settings(folder))
        learner = self.make_learner(folder)
        learner.read_optimizer(folder)
        learner.version = int(state["version"])
        if (folder / REFERENCE_FOLDER).exists():
            learner.read_reference(folder / REFERENCE_FOLDER)
        use_random_state(state, self.device)
        return learner

    def close(self) -> None:
        """Stop sending weights, and drop the model."""
        if self._sender is not None:
            self._sender.close()
        self._sender = self._learner = self._read = self._asleep = None
        self._shared.clear()

    def _ticket(self, learner: L, weights: dict[str, Tensor], transport: str, version: int, folder: Path) -> Ticket:
        if transport != "folder":  # where transformers does the same
            weights = use_folder_names(learner.model, weights)
        match transport:
            case "memory":
                return MemoryTicket(weights)
            case "folder":
                place = folder / str(version)
                with write_atomically(place, World()) as new:
                    write_model(new, learner.model, weights, learner.folder)
                return FolderTicket(place)
            case "ipc":
                from ale_torch.weights.sender import share_by_ipc

                self._shared = [*self._shared[-1:], weights]
                return share_by_ipc(version, weights)
            case _:
                from ale_torch.weights.sender import WeightSender

                self._sender = self._sender or WeightSender(transport, self.world.host)
                return self._sender.offer(version, weights)


def pick_device(name: str, ranks: int = 1) -> str:
    """Return the device of `trainer.device`; of several ranks each takes the GPU of its number. Raises `ConfigError` if
    there are too few."""
    count = torch.cuda.device_count()
    if name == "auto":
        if not torch.cuda.is_available() or not count:
            return "cpu"
        if ranks > count:
            raise ConfigError(
                f"trainer.ranks is {ranks} and trainer.device 'auto': each rank takes a GPU of its own, and torch sees "
                f"{count}. Set trainer.ranks to at most {count}, or trainer.device to cpu."
            )
        return "cuda"
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
