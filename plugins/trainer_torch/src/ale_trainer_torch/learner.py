"""The model being trained and its optimizer: the blocking half of the trainer, used from one thread only.

An update cuts the batch into micro-batches, adds up their gradients (`accumulate`), looks whether all is finite, clips,
and steps once (`step`). The loss is a function that comes with the call. The reference policy is a frozen copy of the
model that is asked in the same way.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.errors import ConfigError, TrainerError
from ale.specs.trainer import ChunkTensors, LossFunction, LossInput, TrainBatch
from ale_trainer_torch.folder import read_model
from ale_trainer_torch.microbatch import MicroBatch, cut, padding_waste
from ale_trainer_torch.policy import Policy


@dataclass(frozen=True, slots=True)
class Optimization:
    """How to step."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float
    micro_batch_tokens: int
    logit_chunk: int | None
    packing: bool
    gradient_checkpointing: bool


@dataclass(frozen=True, slots=True)
class Accumulated:
    """What the micro-batches of a batch came to: their losses, what the loss function told, share of padding."""

    loss: float
    told: dict[str, float]
    padding_waste: float


class Learner:
    """A policy, its AdamW, and a reference policy once there is one. `folder` is where it was read from."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, how: Optimization) -> None:
        self.folder = folder
        self.model = read_model(folder, dtype).to(device)
        self.version = 0
        self._device = device
        self._how = how
        self._policy = Policy.of(self.model, packing=how.packing, chunk_tokens=how.logit_chunk)
        self._reference: Policy | None = None
        if how.gradient_checkpointing:
            checkpoint_layers(self.model)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model.parameters(), how.weight_decay), lr=how.lr, betas=how.betas, eps=how.eps
        )

    @property
    def reference(self) -> Any | None:
        """The model of the reference policy."""
        return None if self._reference is None else self._reference.model

    def keep_reference(self) -> None:
        """Make a copy of the weights as they are the reference policy."""
        self._take_reference(copy.deepcopy(self.model))

    def read_reference(self, folder: Path) -> None:
        """Take the reference policy from a model folder."""
        self._take_reference(read_model(folder, self.model.dtype).to(self._device))

    def _take_reference(self, model: Any) -> None:
        model.requires_grad_(False)
        model.eval()  # activations are recomputed for a backward pass only
        self._reference = self._policy.with_model(model)

    def logprobs(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """Log-probability of each token with loss, 0 elsewhere. [N]

        Cut like an update, so that the same weights give the same numbers in both, bit by bit.
        """
        return self._logprobs(self._policy, batch)

    def reference_logprobs(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """The same under the reference policy. [N]"""
        if self._reference is None:
            raise TrainerError("The trainer 'torch' has no reference policy yet; call keep_reference first.")
        return self._logprobs(self._reference, batch)

    @torch.no_grad()
    def _logprobs(self, policy: Policy, batch: TrainBatch) -> npt.NDArray[np.float32]:
        out = np.zeros(len(batch.token_ids), dtype=np.float32)
        for part in self._cut(batch):
            out[part.index] = self._forward(policy, part, entropy=False)[0].cpu().numpy()
        return out

    def update(
        self, batch: TrainBatch, loss: LossFunction, lr: float | None, weight_decay: float | None = None
    ) -> dict[str, float]:
        """One optimizer step; see `TrainerBackend.update`."""
        began = time.monotonic()
        lr = self._how.lr if lr is None else lr
        self.optimizer.zero_grad(set_to_none=True)
        found = self.accumulate(batch, loss)
        norm = self.step(lr, weight_decay)
        return found.told | {
            "loss": found.loss,
            "grad_norm": norm,
            "grad_clipped": float(norm > self._how.max_grad_norm),
            "lr": lr,
            "tokens": float(len(batch.token_ids)),
            "padding_waste": found.padding_waste,
            "seconds": time.monotonic() - began,
        }

    def accumulate(self, batch: TrainBatch, loss: LossFunction) -> Accumulated:
        """Add the gradient of a batch to those that the weights hold."""
        parts = self._cut(batch)
        chunks = self._chunk_tensors(batch)
        total, told = 0.0, dict[str, float]()
        for part in parts:
            if not part.wanted.any():
                continue
            out = loss(self._loss_input(batch, part, chunks))
            total += float(out.loss.detach())
            self._require_finite(total, "loss")
            if out.loss.requires_grad:
                out.loss.backward()
            for name, value in out.sums.items():
                told[name] = told.get(name, 0.0) + float(value)
            for name, value in out.maxima.items():
                told[name] = max(told.get(name, -math.inf), float(value))
        return Accumulated(total, told, padding_waste(parts))

    def step(self, lr: float, weight_decay: float | None = None) -> float:
        """One step along the gradient that was added up, which is cleared; gives its norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._how.max_grad_norm))
        self._require_finite(norm, "gradient norm")
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.param_groups[0]["weight_decay"] = (
            self._how.weight_decay if weight_decay is None else weight_decay
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def weights(self) -> dict[str, Tensor]:
        """Copies of all weights under their Hugging Face names; tied ones share their copy."""
        copies: dict[int, Tensor] = {}
        out: dict[str, Tensor] = {}
        for name, value in self.model.state_dict().items():
            key = value.data_ptr()
            if key not in copies or copies[key].shape != value.shape:
                copies[key] = value.detach().clone()
            out[name] = copies[key]
        return out

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights."""
        cuda = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return {
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
            "rng": torch.get_rng_state(),
            "cuda_rng": cuda,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except (ValueError, KeyError) as error:
            raise TrainerError(
                f"The optimizer state in {self.folder} is not of this model; take the model's own checkpoint, "
                "or start from its weights alone (model.path)."
            ) from error
        self.version = int(state["version"])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] is not None and self._device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self._device)

    def _cut(self, batch: TrainBatch) -> list[MicroBatch]:
        return cut(batch, self._how.micro_batch_tokens, end_to_end=self._policy.packs)

    def _forward(self, policy: Policy, part: MicroBatch, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        tokens = torch.from_numpy(part.tokens).to(self._device)
        wanted = torch.from_numpy(part.wanted).to(self._device)
        try:
            return policy.logprobs(tokens, wanted, part.lengths, entropy=entropy)
        except torch.OutOfMemoryError as error:
            raise TrainerError(
                f"A micro-batch of {tokens.numel()} tokens does not fit into the device's memory; lower "
                "trainer.micro_batch_tokens or trainer.logit_chunk, or set trainer.gradient_checkpointing. All contexts of a "
                "trajectory are in one micro-batch: where they alone are that many, lower rollout.max_calls or max_sampled_tokens."
            ) from error
        except IndexError as error:
            longest = max(part.lengths or [tokens.shape[1]])
            limit = getattr(self.model.config, "max_position_embeddings", "?")
            raise TrainerError(
                f"The model cannot take this batch: its longest sequence has {longest} tokens (the model's "
                f"context: {limit}), its highest token id is {int(tokens.max())} (the model's vocabulary: "
                f"{self.model.config.vocab_size}). Lower rollout.max_context, or use the model's own tokenizer."
            ) from error

    def _loss_input(self, batch: TrainBatch, part: MicroBatch, chunks: ChunkTensors) -> LossInput:
        index = part.index

        def pick(values: npt.NDArray[Any] | None) -> Tensor | None:
            return None if values is None else torch.from_numpy(values[index]).to(self._device)

        logprobs, entropy = self._forward(self._policy, part, entropy=True)
        return LossInput(
            logprobs, entropy, pick(batch.old_logprobs), pick(batch.engine_logprobs), pick(batch.chunk_ids), chunks,
            batch.normalizer, pick(batch.reference_logprobs),
        )  # fmt: skip

    def _chunk_tensors(self, batch: TrainBatch) -> ChunkTensors:
        c = batch.chunks
        columns = (c.trajectory, c.position, c.count, c.returns, c.positive, c.sampled)
        return ChunkTensors(*(torch.from_numpy(np.ascontiguousarray(x)).to(self._device) for x in columns))

    def _require_finite(self, value: float, what: str) -> None:
        if math.isfinite(value):
            return
        self.optimizer.zero_grad(set_to_none=True)
        raise TrainerError(
            f"The {what} is {value}; the weights were left as they are. "
            "Lower trainer.lr, or look for log-probabilities of -inf in the batch."
        )


def pick_device(name: str) -> torch.device:
    """The device of `trainer.device`. Raises `ConfigError` where it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"trainer.device is '{name}', but torch sees {torch.cuda.device_count()} CUDA devices; "
            "set it to auto or cpu, or install a build of torch with CUDA."
        )
    return device


def parameter_groups(parameters: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """The first group decays: matrices alone. On norms and biases it would pull towards no particular sense."""
    trained = [p for p in parameters if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def checkpoint_layers(model: Any) -> None:
    """Recompute each layer's activations in the backward pass instead of keeping them.

    The library does so only in layers that are in training mode. The mode is set on the layers themselves and not on
    the modules inside them, whose dropout stays off.
    """
    # Later releases of the library have it under the second name and warn about the first.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
