"""The model being trained and its optimizer: the blocking half of the trainer, used from one thread only.

An update cuts the batch into micro-batches, adds up their gradients (`accumulate`), checks that all are finite, clips,
and steps once (`step`). The loss is an argument of the call. The reference policy is a frozen copy of the model, whose
log-probabilities are computed in the same way.
"""

from __future__ import annotations

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
from ale.specs.trainer import ChunkTensors, LossFunction, LossInput, PolicyRole, TrainBatch
from ale_trainer_torch.folder import read_model, write_atomically, write_model, write_state
from ale_trainer_torch.microbatch import MicroBatch, cut, padding_waste
from ale_trainer_torch.policy import Policy


@dataclass(frozen=True, slots=True)
class Optimization:
    """The settings of the optimizer."""

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
    """The totals over a batch's micro-batches: losses, metrics of the loss function, share of padding."""

    loss: float
    metrics: dict[str, float]
    padding_waste: float


class Learner:
    """A policy, its AdamW, and a reference policy if one was loaded. The policy was read from `folder`."""

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

    def read_reference(self, folder: Path) -> None:
        """Read the reference policy from a model folder."""
        model = read_model(folder, self.model.dtype).to(self._device)
        model.requires_grad_(False)
        self._reference = self._policy.with_model(model)

    @torch.no_grad()
    def logprobs(self, batch: TrainBatch, role: PolicyRole = "current") -> npt.NDArray[np.float32]:
        """Log-probability of each token with loss, 0 elsewhere. [N]

        The batch is cut as in an update, so that the same weights give bitwise the same numbers in both.
        """
        policy = self._policy if role == "current" else self._reference
        if policy is None:
            raise TrainerError(
                "The trainer 'torch' has no reference policy yet; load one with load(folder, 'reference')."
            )
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
        return found.metrics | {
            "loss": found.loss,
            "grad_norm": norm,
            "grad_clipped": float(norm > self._how.max_grad_norm),
            "lr": lr,
            "tokens": float(len(batch.token_ids)),
            "padding_waste": found.padding_waste,
            "seconds": time.monotonic() - began,
        }

    def accumulate(self, batch: TrainBatch, loss: LossFunction) -> Accumulated:
        """Add the gradient of a batch to the accumulated gradients."""
        parts = self._cut(batch)
        chunks = self._chunk_tensors(batch)
        total, metrics = 0.0, dict[str, float]()
        for part in parts:
            if not part.wanted.any():
                continue
            out = loss(self._loss_input(batch, part, chunks))
            total += float(out.loss.detach())
            self._require_finite(total, "loss")
            if out.loss.requires_grad:
                out.loss.backward()
            for name, value in out.sums.items():
                metrics[name] = metrics.get(name, 0.0) + float(value)
            for name, value in out.maxima.items():
                metrics[name] = max(metrics.get(name, -math.inf), float(value))
        return Accumulated(total, metrics, padding_waste(parts))

    def step(self, lr: float, weight_decay: float | None = None) -> float:
        """Step along the accumulated gradient and clear it; return its norm before clipping."""
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
        """Return copies of all weights by their Hugging Face names; tied ones share a copy."""
        copies: dict[int, Tensor] = {}
        out: dict[str, Tensor] = {}
        for name, value in self.model.state_dict().items():
            key = value.data_ptr()
            if key not in copies or copies[key].shape != value.shape:
                copies[key] = value.detach().clone()
            out[name] = copies[key]
        return out

    def write(self, folder: Path) -> Path:
        """Write the model and its tokenizer's files atomically; return the folder."""
        with write_atomically(folder) as new:
            write_model(new, self.model, self.folder)
        return folder

    def save(self, folder: Path) -> None:
        """Write a checkpoint atomically, replacing an existing one."""
        reference = None if self._reference is None else self._reference.model
        with write_atomically(folder) as new:
            write_model(new, self.model, self.folder)
            write_state(new, self.state(), reference)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides the weights."""
        cuda = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return {
            "optimizer": self.optimizer.state_dict(),
            "version": self.version,
            "rng": torch.get_rng_state(),
            "cuda_rng": cuda,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
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
                "trainer.micro_batch_tokens or trainer.logit_chunk, or set trainer.gradient_checkpointing. All "
                "contexts of a trajectory are in one micro-batch: if they alone are that many tokens, lower "
                "rollout.max_calls or max_sampled_tokens."
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
            logprobs,
            entropy,
            pick(batch.old_logprobs),
            pick(batch.engine_logprobs),
            pick(batch.chunk_ids),
            chunks,
            batch.normalizer,
            batch.reference_normalizer,
            pick(batch.reference_logprobs),
        )

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
    """Return the device of `trainer.device`. Raises `ConfigError` if it does not exist."""
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
    """Split parameters in two groups: matrices with weight decay, and norms and biases without."""
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
    # Later releases of transformers use the second name and warn about the first.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
