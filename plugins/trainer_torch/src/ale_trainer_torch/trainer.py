"""The trainer `torch`: AdamW on a Hugging Face causal LM, in one process and on one device.

All work on the model (`learner.py`) runs in one separate thread, so that the event loop stays free and no two calls use
the model at once. If a call is cancelled, its work still finishes in that thread, and the next call waits for it.

torch and transformers come in with `learner.py`, which the constructor imports: settings are checked without them, and
no thread is the first to import them while another one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ale.errors import TrainerError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import FolderTicket, MemoryTicket, PolicyVersion, Ticket
from ale.specs.trainer import LossFunction, PolicyRole, TrainBatch, TrainerBackend

if TYPE_CHECKING:
    from torch import Tensor

    from ale_trainer_torch.learner import Learner
    from ale_weight_transfer.sender import WeightSender

T = TypeVar("T")


class TorchTrainer(Driver, TrainerBackend):
    """The trainer `torch`."""

    api_version = ">=1.0,<1.2"
    transports: tuple[str, ...] = ("memory", "ipc", "nccl", "folder", "gloo")

    class Config(PluginConfig):
        """Settings of the trainer `torch`."""

        lr: float = Field(5e-4, gt=0, description="Learning rate of AdamW.")
        beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first beta.")
        beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second beta.")
        eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
        weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay, only for matrices.")
        max_grad_norm: float = Field(
            1.0, gt=0, description="Largest norm of the gradients; larger ones are scaled down."
        )
        micro_batch_tokens: int = Field(
            16384, gt=0, description="Positions in one forward and backward pass; fewer need less memory."
        )
        logit_chunk: int | None = Field(
            1024, gt=0, description="Positions whose logits are in memory at the same time; null: all of a pass."
        )
        packing: bool = Field(
            True,
            description="Pack sequences without padding if the model allows it; false: pad rows of similar lengths.",
        )
        gradient_checkpointing: bool = Field(
            False, description="Recompute activations in the backward pass: less memory, a third more time."
        )
        device: str = Field(
            "auto",
            pattern=r"^(auto|cpu|cuda(:\d+)?)$",
            description="auto (a GPU if there is one), cpu, cuda, cuda:1.",
        )
        dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type of weights and activations.")
        threads: int = Field(0, ge=0, description="CPU threads that the trainer computes with; 0: torch's own choice.")

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        from ale_trainer_torch.learner import pick_device

        super().__init__(config, context)
        self._learner: Learner | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._device = pick_device(config.device)
        on_gpu = self._device.type == "cuda"
        self.transports = ("memory", "ipc", "nccl", "folder") if on_gpu else ("memory", "folder", "gloo")
        self._sender: WeightSender | None = None
        self._shared: list[dict[str, Tensor]] = []
        """The newest two versions that were published by `ipc`: another process reads them in this one's memory."""

    async def start(self) -> None:
        """Start the training thread."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ale-trainer")
        if self.config.threads:
            import torch

            # torch keeps this number per thread, so the engine has its own.
            await self._run(lambda: torch.set_num_threads(self.config.threads))

    async def close(self) -> None:
        """End the training thread after the current work is finished."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.shutdown)
        if self._sender is not None:
            await asyncio.to_thread(self._sender.close)
        self._sender, self._learner = None, None
        self._shared.clear()

    async def load(self, folder: Path, policy: PolicyRole = "current") -> None:
        """See `TrainerBackend.load`; the reference policy is on the trainer's device too."""
        if policy == "reference":
            learner = self._ready()
            await self._run(lambda: learner.read_reference(folder))
        else:
            self._learner = await self._run(lambda: self._read(folder))

    async def logprobs(self, batch: TrainBatch, policy: PolicyRole = "current") -> npt.NDArray[np.float32]:
        """See `TrainerBackend.logprobs`."""
        learner = self._ready()
        return await self._run(lambda: learner.logprobs(batch, policy))

    async def update(
        self, batch: TrainBatch, loss: LossFunction, *, lr: float | None = None, weight_decay: float | None = None
    ) -> dict[str, float]:
        """See `TrainerBackend.update`."""
        learner = self._ready()
        return await self._run(lambda: learner.update(batch, loss, lr, weight_decay))

    async def publish(self, transport: str, folder: Path) -> PolicyVersion:
        """See `TrainerBackend.publish`. Weights in memory are copies; a folder has the tokenizer's files too."""
        learner = self._ready()
        if transport not in self.transports:
            raise TrainerError(
                f"The trainer 'torch' publishes weights by {' or '.join(self.transports)}, not by '{transport}'."
            )

        def publish() -> PolicyVersion:
            version = learner.version + 1
            policy = PolicyVersion(version, self._ticket(learner, transport, version, folder))
            learner.version = version
            return policy

        return await self._run(publish)

    async def save(self, folder: Path) -> None:
        """See `TrainerBackend.save`; the tokenizer's files come along, so the folder serves as `model.path` too."""
        learner = self._ready()
        await self._run(lambda: learner.save(folder))

    async def restore(self, folder: Path) -> None:
        """See `TrainerBackend.restore`."""
        from ale_trainer_torch.folder import REFERENCE_FOLDER, read_state, recover_checkpoint

        def read() -> Learner:
            recover_checkpoint(folder)
            state = read_state(folder)
            learner = self._read(folder)
            learner.restore(state)
            if (folder / REFERENCE_FOLDER).exists():
                learner.read_reference(folder / REFERENCE_FOLDER)
            return learner

        self._learner = await self._run(read)

    def _ticket(self, learner: Learner, transport: str, version: int, folder: Path) -> Ticket:
        match transport:
            case "memory":
                return MemoryTicket(learner.weights())
            case "folder":
                return FolderTicket(learner.write(folder / str(version)))
            case "ipc":
                from ale_weight_transfer.sender import share_by_ipc

                self._shared = [*self._shared[-1:], learner.weights()]
                return share_by_ipc(version, self._shared[-1])
            case _:
                from ale_weight_transfer.sender import WeightSender

                self._sender = self._sender or WeightSender(transport)
                return self._sender.offer(version, learner.weights())

    async def _run(self, work: Callable[[], T]) -> T:
        if self._worker is None:
            raise TrainerError("The trainer 'torch' is not running; use it inside 'async with trainer:'.")
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _ready(self) -> Learner:
        if self._learner is None:
            raise TrainerError("The trainer 'torch' has no model yet; call load or restore first.")
        return self._learner

    def _read(self, folder: Path) -> Learner:
        import torch

        from ale_trainer_torch.learner import Learner, Optimization

        c = self.config
        how = Optimization(
            lr=c.lr,
            betas=(c.beta1, c.beta2),
            eps=c.eps,
            weight_decay=c.weight_decay,
            max_grad_norm=c.max_grad_norm,
            micro_batch_tokens=c.micro_batch_tokens,
            logit_chunk=c.logit_chunk,
            packing=c.packing,
            gradient_checkpointing=c.gradient_checkpointing,
        )
        return Learner(folder, self._device, getattr(torch, c.dtype), how)
