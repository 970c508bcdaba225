"""One process, one device: AdamW on a Hugging Face causal LM.

All work on the model (`learner.py`) happens in one thread of its own, so that the event loop stays free and no two
calls touch the model at once. A call that is cancelled leaves its work to finish in that thread; what comes next
waits for it.

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
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.engine import PolicyVersion
from ale.specs.trainer import LossFunction, ScratchModel, TrainBatch, TrainerBackend

if TYPE_CHECKING:
    from ale_trainer_torch.learner import Learner

T = TypeVar("T")


class TorchTrainer(TrainerBackend):
    """The trainer `torch`."""

    api_version = ">=1.1,<1.3"
    capabilities = frozenset({"weights_in_memory", "scratch", "reference", "gpu"})

    class Config(PluginConfig):
        """Settings of the trainer `torch`."""

        lr: float = Field(5e-4, gt=0, description="Learning rate of AdamW.")
        beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first beta.")
        beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second beta.")
        eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
        weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay, of matrices alone.")
        max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to at most this norm.")
        micro_batch_tokens: int = Field(
            16384, gt=0, description="Positions of one forward and backward pass; less needs less memory."
        )
        logit_chunk: int | None = Field(
            1024, gt=0, description="Positions whose logits are held at a time; null: all of a pass."
        )
        packing: bool = Field(
            True,
            description="Put sequences end to end, without padding, where the model allows it; "
            "false: rows of like lengths, padded.",
        )
        gradient_checkpointing: bool = Field(
            False, description="Recompute activations in the backward pass: less memory, a third more time."
        )
        device: str = Field(
            "auto",
            pattern=r"^(auto|cpu|cuda(:\d+)?)$",
            description="auto (a GPU where there is one), cpu, cuda, cuda:1.",
        )
        dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type of weights and activations.")
        threads: int = Field(0, ge=0, description="CPU threads of the training thread; 0: torch's own choice.")

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        from ale_trainer_torch.learner import pick_device

        super().__init__(config, context)
        self._learner: Learner | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._device = pick_device(config.device)

    async def start(self) -> None:
        """Start the training thread."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ale-trainer")
        if self.config.threads:
            import torch

            # torch keeps this number per thread: the engine's is its own.
            await self._run(lambda: torch.set_num_threads(self.config.threads))

    async def close(self) -> None:
        """End the training thread; work under way is finished first."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.shutdown)
        self._learner = None

    async def create_model(self, model: ScratchModel, folder: Path) -> None:
        """See `TrainerBackend.create_model`."""

        def write() -> None:
            from ale_trainer_torch.scratch import write_scratch_model

            write_scratch_model(model, folder, self.context.seed)

        await self._run(write)

    async def load_model(self, folder: Path) -> None:
        """See `TrainerBackend.load_model`."""
        self._learner = await self._run(lambda: self._read(folder))

    async def logprobs(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """See `TrainerBackend.logprobs`; 0 too where a token carries no loss."""
        learner = self._ready()
        return await self._run(lambda: learner.logprobs(batch))

    async def update(
        self, batch: TrainBatch, loss: LossFunction, *, lr: float | None = None, weight_decay: float | None = None
    ) -> dict[str, float]:
        """See `TrainerBackend.update`."""
        learner = self._ready()
        return await self._run(lambda: learner.update(batch, loss, lr, weight_decay))

    async def keep_reference(self) -> None:
        """See `TrainerBackend.keep_reference`; the copy stands on the trainer's device."""
        await self._run(self._ready().keep_reference)

    async def reference_logprobs(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """See `TrainerBackend.reference_logprobs`."""
        learner = self._ready()
        return await self._run(lambda: learner.reference_logprobs(batch))

    async def publish(self) -> PolicyVersion:
        """See `TrainerBackend.publish`; the tensors are copies."""
        learner = self._ready()

        def copy() -> PolicyVersion:
            weights = learner.weights()
            learner.version += 1
            return PolicyVersion(learner.version, weights=weights)

        return await self._run(copy)

    async def save(self, folder: Path) -> None:
        """See `TrainerBackend.save`; the tokenizer's files come along, so the folder serves as `model.path` too."""
        from ale_trainer_torch.folder import write_checkpoint

        learner = self._ready()
        await self._run(
            lambda: write_checkpoint(folder, learner.model, learner.state(), learner.folder, learner.reference)
        )

    async def load(self, folder: Path) -> None:
        """See `TrainerBackend.load`."""
        from ale_trainer_torch.folder import REFERENCE_FOLDER, read_state, restore

        def read() -> Learner:
            restore(folder)
            state = read_state(folder)
            learner = self._read(folder)
            learner.restore(state)
            if (folder / REFERENCE_FOLDER).exists():
                learner.read_reference(folder / REFERENCE_FOLDER)
            return learner

        self._learner = await self._run(read)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._worker is None:
            raise TrainerError("The trainer 'torch' is not running; use it inside 'async with trainer:'.")
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _ready(self) -> Learner:
        if self._learner is None:
            raise TrainerError("The trainer 'torch' has no model yet; call load_model or load first.")
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
