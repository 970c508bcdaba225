"""One process, one device: AdamW on a Hugging Face causal LM.

An update cuts the batch into micro-batches, adds up their gradients, clips, and steps once; the loss comes from the
algorithm. All work on the model happens in one thread of its own, so that the event loop stays free.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor
from transformers import AutoModelForCausalLM

from ale.errors import ConfigError, TrainerError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.engine import PolicyVersion
from ale.specs.trainer import ChunkTensors, LossFunction, LossInput, ScratchModel, TrainBatch, TrainerBackend
from ale_trainer_torch.microbatch import MicroBatch, cut, padding_waste
from ale_trainer_torch.policy import token_logprobs
from ale_trainer_torch.scratch import write_scratch_model

T = TypeVar("T")
STATE_FILE = "trainer_state.pt"


class TorchTrainer(TrainerBackend):
    """The trainer `torch`."""

    class Config(PluginConfig):
        """Settings of the trainer `torch`."""

        lr: float = Field(5e-4, gt=0, description="Learning rate of AdamW.")
        weight_decay: float = Field(0.0, ge=0, description="Weight decay of AdamW.")
        beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first beta.")
        beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second beta.")
        max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to at most this norm.")
        micro_batch_tokens: int = Field(16384, gt=0, description="Padded positions of one forward and backward pass.")
        device: str = Field("auto", description="auto, cpu or cuda.")
        dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type of weights and activations.")
        threads: int = Field(0, ge=0, description="CPU threads of the training thread; 0: torch's own choice.")

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self._model: Any = None
        self._optimizer: torch.optim.AdamW | None = None
        self._folder: Path | None = None
        self._version = 0
        self._worker: ThreadPoolExecutor | None = None
        cuda = torch.cuda.is_available()
        self._device = torch.device(("cuda" if cuda else "cpu") if config.device == "auto" else config.device)

    async def start(self) -> None:
        """Start the training thread."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ale-trainer")
        if self.config.threads:
            await self._run(lambda: torch.set_num_threads(self.config.threads))

    async def close(self) -> None:
        """End the training thread; work under way is finished first."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await asyncio.get_running_loop().run_in_executor(None, worker.shutdown)
        self._model = self._optimizer = None

    async def _run(self, work: Callable[[], T]) -> T:
        if self._worker is None:
            raise TrainerError("The trainer is closed.")
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def create_model(self, model: ScratchModel, folder: Path) -> None:
        """See `TrainerBackend.create_model`."""
        await self._run(lambda: write_scratch_model(model, folder, self.context.seed))

    async def load_model(self, folder: Path) -> None:
        """See `TrainerBackend.load_model`."""
        await self._run(lambda: self._load_model(folder))

    def _load_model(self, folder: Path) -> None:
        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(folder), local_files_only=True, dtype=getattr(torch, self.config.dtype)
            )
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"The folder {folder} holds no causal language model that can be loaded: {reason}") from error
        self._model = model.to(self._device).train()
        c = self.config
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=c.lr, betas=(c.beta1, c.beta2), weight_decay=c.weight_decay
        )
        self._folder, self._version = folder, 0

    async def logprobs(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """See `TrainerBackend.logprobs`; 0 too where a token carries no loss."""
        return await self._run(lambda: self._logprobs(batch))

    @torch.no_grad()
    def _logprobs(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        out = np.zeros(len(batch.token_ids), dtype=np.float32)
        for part in cut(batch, self.config.micro_batch_tokens):
            wanted, index = self._wanted(batch, part)
            logprobs, _ = self._forward(part, wanted)
            out[index] = logprobs.cpu().numpy()
        return out

    def _wanted(self, batch: TrainBatch, part: MicroBatch) -> tuple[Tensor, npt.NDArray[np.int64]]:
        """Which positions carry loss, and their packed indices in row-major order."""
        wanted = (part.source >= 0) & (batch.chunk_ids[np.maximum(part.source, 0)] >= 0)
        wanted[:, 0] = False  # nothing stands before the first token
        return torch.from_numpy(wanted).to(self._device), part.source[wanted]

    def _forward(self, part: MicroBatch, wanted: Tensor) -> tuple[Tensor, Tensor]:
        tokens, lengths = torch.from_numpy(part.tokens), torch.from_numpy(part.lengths)
        return token_logprobs(self._model, tokens.to(self._device), lengths.to(self._device), wanted)

    async def update(self, batch: TrainBatch, loss: LossFunction, *, lr: float | None = None) -> dict[str, float]:
        """See `TrainerBackend.update`."""
        return await self._run(lambda: self._update(batch, loss, self.config.lr if lr is None else lr))

    def _update(self, batch: TrainBatch, loss: LossFunction, lr: float) -> dict[str, float]:
        assert self._optimizer is not None
        began = time.monotonic()
        self._optimizer.zero_grad(set_to_none=True)
        parts = cut(batch, self.config.micro_batch_tokens)
        chunks = self._chunk_tensors(batch)
        total, sums = 0.0, {}  # type: float, dict[str, float]
        for part in parts:
            wanted, index = self._wanted(batch, part)
            if len(index) == 0:
                continue
            logprobs, entropy = self._forward(part, wanted)
            out = loss(self._loss_input(batch, chunks, index, logprobs, entropy))
            if out.loss.requires_grad:
                out.loss.backward()
            total += float(out.loss.detach())
            for name, value in out.sums.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self.config.max_grad_norm))
        if not (np.isfinite(total) and np.isfinite(norm)):
            self._optimizer.zero_grad(set_to_none=True)
            raise TrainerError(
                f"The loss ({total}) or its gradient norm ({norm}) is not finite; the weights were left as they are. "
                "Lower trainer.lr, or look for log-probabilities of -inf in the batch."
            )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return sums | {
            "loss": total, "grad_norm": norm, "lr": lr, "tokens": float(len(batch.token_ids)),
            "padding_waste": padding_waste(parts), "seconds": time.monotonic() - began,
        }  # fmt: skip

    def _chunk_tensors(self, batch: TrainBatch) -> ChunkTensors:
        c = batch.chunks
        columns = (c.trajectory, c.position, c.count, c.returns, c.positive)
        return ChunkTensors(*(torch.from_numpy(np.ascontiguousarray(x)).to(self._device) for x in columns))

    def _loss_input(
        self, batch: TrainBatch, chunks: ChunkTensors, index: npt.NDArray[np.int64], logprobs: Tensor, entropy: Tensor
    ) -> LossInput:
        def pick(values: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(values[index]).to(self._device)

        engine = pick(batch.engine_logprobs)
        old = engine if batch.old_logprobs is None else pick(batch.old_logprobs)
        return LossInput(logprobs, entropy, old, engine, pick(batch.chunk_ids), chunks, batch.normalizer)

    async def publish(self) -> PolicyVersion:
        """See `TrainerBackend.publish`; the tensors are copies."""

        def copy() -> dict[str, Tensor]:
            return {name: value.detach().clone() for name, value in self._model.state_dict().items()}

        weights = await self._run(copy)
        self._version += 1
        return PolicyVersion(self._version, weights=weights)

    async def save(self, folder: Path) -> None:
        """See `TrainerBackend.save`; the tokenizer's files come along."""
        await self._run(lambda: self._save(folder))

    def _save(self, folder: Path) -> None:
        assert self._optimizer is not None
        temporary = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
            if self._folder is not None and (self._folder / name).exists():
                shutil.copy2(self._folder / name, temporary / name)
        self._model.save_pretrained(str(temporary))
        state = {"optimizer": self._optimizer.state_dict(), "version": self._version, "rng": torch.get_rng_state()}
        torch.save(state, temporary / STATE_FILE)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)

    async def load(self, folder: Path) -> None:
        """See `TrainerBackend.load`."""
        await self._run(lambda: self._load(folder))

    def _load(self, folder: Path) -> None:
        if not (folder / STATE_FILE).is_file():
            raise ConfigError(f"{folder} is not a checkpoint: it holds no {STATE_FILE}.")
        self._load_model(folder)
        assert self._optimizer is not None
        state = torch.load(folder / STATE_FILE, weights_only=True)
        self._optimizer.load_state_dict(state["optimizer"])
        self._version = int(state["version"])
        torch.set_rng_state(state["rng"])
