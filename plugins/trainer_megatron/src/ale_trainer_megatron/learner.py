"""The model being trained and megatron-core's distributed optimizer: one rank's half of every call.

All ranks make the same calls with the same batch. The copies of the model share its trajectories; the ranks of a copy
pass the same micro-batches. Losses are computed on the last stage, by each tensor-parallel rank the same, and one of
them reports. Gradients are sums, over micro-batches and over copies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from torch import Tensor

from ale.errors import TrainerError
from ale.specs.trainer import Loss, PolicyRole, TrainBatch
from ale_torch.training.batch_loss import BatchLoss, Passed, Totals
from ale_torch.training.checkpoint_folder import OPTIMIZER_FOLDER
from ale_torch.training.microbatch import LossGroup, MicroBatch, cut
from ale_torch.training.model_folder import save_pretrained
from ale_torch.training.sleep import tensors_of
from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.model import Policy, build_model
from ale_trainer_megatron.optimizer_state import OptimizerState
from ale_trainer_megatron.passes import Finish, Passes
from ale_trainer_megatron.weights import Mapped, read_weights

if TYPE_CHECKING:
    from ale_trainer_megatron.trainer import MegatronTrainer


class Learner:
    """A policy, its optimizer, and a reference policy if one was loaded. The policy was read from `folder`."""

    def __init__(self, folder: Path, device: torch.device, how: MegatronTrainer.Config, layout: Layout) -> None:
        self.folder = folder
        self.device = device
        self.how = how
        self.layout = layout
        self.version = 0
        self.dtype: torch.dtype = getattr(torch, how.dtype)
        self.model, weights = read_weights(folder, layout, torch.float32)
        """A model of transformers without weights, which writes folders."""
        self._passes = Passes(self.model.config, layout, device, how.logit_chunk)
        policy = self._build()
        self.mapped = Mapped(policy, self.model, layout)
        self.module = DistributedDataParallel(
            policy.config,
            DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
            policy,
        )
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=how.lr,
                weight_decay=how.weight_decay,
                adam_beta1=how.beta1,
                adam_beta2=how.beta2,
                adam_eps=how.eps,
                clip_grad=how.max_grad_norm,
                bf16=self.has_masters,
                params_dtype=self.dtype,
                use_distributed_optimizer=True,
            ),
            [self.module],
        )
        self.state = OptimizerState(self.mapped, self.optimizer, masters=self.has_masters)
        self.mapped.fill(weights, self.state.set_masters)
        self.reference: Mapped | None = None
        self._reference_policy: Policy | None = None

    @property
    def has_masters(self) -> bool:
        """Whether weights are kept wider than they are computed with."""
        return self.dtype != torch.float32

    def tensors(self) -> Iterator[Tensor]:
        """Gradients and weights are views of one buffer each."""
        optimizers = [part.optimizer for part in getattr(self.optimizer, "chained_optimizers", [self.optimizer])]
        yield from tensors_of(self.module.module, self._reference_policy, optimizers=optimizers)
        yield from (p.main_grad for p in self.module.parameters() if getattr(p, "main_grad", None) is not None)

    def read_reference(self, folder: Path) -> None:
        """Read the reference policy from a model folder."""
        model, weights = read_weights(folder, self.layout, self.dtype)
        policy = self._build()
        policy.requires_grad_(False)
        self.reference = Mapped(policy, model, self.layout)
        self.reference.fill(weights)
        self._reference_policy = policy

    def write_reference(self, folder: Path) -> None:
        """Write the reference policy as a model folder, if there is one."""
        if self.reference is None:
            return
        weights = self.reference.weights(self.dtype)
        if self.layout.world.rank == 0:
            save_pretrained(folder, self.model, weights)

    def write_optimizer(self, checkpoint: Path) -> None:
        """Write the optimizer's state, whatever the layout."""
        self.state.write(checkpoint / OPTIMIZER_FOLDER)

    def read_optimizer(self, checkpoint: Path) -> None:
        """Read the optimizer's state. Raises `ConfigError` or `TrainerError`."""
        self.state.read(checkpoint / OPTIMIZER_FOLDER)

    def weights(self) -> dict[str, Tensor]:
        """Return copies of all weights by their Hugging Face names, on rank 0; tied ones share a copy."""
        return self.mapped.weights(self.dtype)

    @torch.no_grad()
    def logprobs(self, batch: TrainBatch, role: PolicyRole = "current") -> npt.NDArray[np.float32]:
        """Log-probability of each token with loss, 0 elsewhere. [N]"""
        model = self.module if role == "current" else self._reference_policy
        if model is None:
            raise TrainerError("The trainer has no reference policy yet; load one with load(folder, 'reference').")
        found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = []

        def keep(part: MicroBatch, passed: Passed) -> None:
            if self.layout.speaks:
                found.append((part.index, passed.logprobs.float().cpu().numpy()))

        parts = chain.from_iterable(self._cut(batch)[self.layout.data_rank])
        self._run(model, [(part, keep) for part in parts], batch.temperature, backward=False)
        out = np.zeros(len(batch.token_ids), dtype=np.float32)
        for index, values in chain.from_iterable(self.layout.world.gather(found)):
            out[index] = values
        return out

    def update(
        self, batch: TrainBatch, loss: Loss, lr: float | None, weight_decay: float | None = None
    ) -> dict[str, float]:
        """One optimizer step; see `TrainerBackend.update`."""
        began = time.monotonic()
        lr = self.how.lr if lr is None else lr
        totals = self.accumulate(batch, loss)
        norm = self.step(lr, self.how.weight_decay if weight_decay is None else weight_decay)
        return {
            **totals.sums,
            **totals.maxima,
            "loss": totals.loss,
            "grad_norm": norm,
            "grad_clipped": float(norm > self.how.max_grad_norm),
            "lr": lr,
            "tokens": float(len(batch.token_ids)),
            "padding_waste": 0.0,  # sequences lie end to end
            "seconds": time.monotonic() - began,
        }

    def accumulate(self, batch: TrainBatch, loss: Loss) -> Totals:
        """Compute the gradient of a batch; return the sum of all its losses."""
        self._clear()
        groups = self._cut(batch)[self.layout.data_rank]
        batch_loss = BatchLoss(self.device, batch, loss)
        given = self._look_ahead([group for group in groups if len(group) > 1], batch_loss, batch.temperature)

        def alone(part: MicroBatch, passed: Passed) -> Tensor:
            return batch_loss.of(part.index, passed) + passed.nothing()

        passes: list[tuple[MicroBatch, Finish]] = [(group[0], alone) for group in groups if len(group) == 1]
        self._run(self.module, [*passes, *given], batch.temperature, backward=True)
        finalize_model_grads([self.module])
        reported = self.layout.world.gather(batch_loss.totals if self.layout.speaks else Totals())
        totals = Totals.over(reported)
        self._require_finite(totals.loss, "loss")
        return totals

    def step(self, lr: float, weight_decay: float) -> float:
        """Step along the gradient and clear it; return its norm before clipping."""
        self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm())
        self._require_finite(norm, "gradient norm")
        for group in self.optimizer.param_groups:
            group["lr"] = lr
            group["weight_decay"] = weight_decay * group["wd_mult"]
        self.optimizer.step()
        self._clear()
        return norm

    def _look_ahead(
        self, groups: list[LossGroup], loss: BatchLoss, temperature: float
    ) -> list[tuple[MicroBatch, Finish]]:
        """Compute the losses that span several micro-batches, without graph; return the passes that give each token the
        gradient of its loss."""
        found: list[Passed] = []
        parts = [part for group in groups for part in group]
        with torch.no_grad():
            kept: list[tuple[MicroBatch, Finish]] = [(part, lambda _, passed: found.append(passed)) for part in parts]
            self._run(self.module, kept, temperature, backward=False)
        if not self.layout.is_last:
            return [(part, lambda _, __: None) for part in parts]
        out: list[tuple[MicroBatch, Finish]] = []
        for group in groups:
            passed, found = found[: len(group)], found[len(group) :]
            for part, slopes in zip(group, loss.look_ahead(group, passed), strict=True):
                out.append((part, _Given(loss, slopes)))
        return out

    def _run(self, model: Any, passes: list[tuple[MicroBatch, Finish]], temperature: float, *, backward: bool) -> None:
        try:
            self._passes.run(model, passes, temperature=temperature, backward=backward)
        except torch.OutOfMemoryError as error:
            raise TrainerError(
                "A micro-batch does not fit into the device's memory; lower trainer.micro_batch_tokens or "
                "trainer.logit_chunk, set trainer.gradient_checkpointing, or raise trainer.tensor_parallel."
            ) from error

    def _build(self) -> Policy:
        recompute = self.how.gradient_checkpointing
        return build_model(self.model.config, self.layout, self.device, self.dtype, recompute=recompute)

    def _cut(self, batch: TrainBatch) -> list[list[LossGroup]]:
        highest, vocabulary = int(batch.token_ids.max(initial=0)), int(self.model.config.vocab_size)
        if highest >= vocabulary:
            raise TrainerError(
                f"The model cannot take this batch: its highest token id is {highest} (the model's vocabulary: "
                f"{vocabulary}). Use the model's own tokenizer."
            )
        return cut(batch, self.how.micro_batch_tokens, end_to_end=True, ranks=self.layout.data)

    def _clear(self) -> None:
        self.module.zero_grad_buffer()
        self.optimizer.zero_grad()

    def _require_finite(self, value: float, what: str) -> None:
        if math.isfinite(value):
            return
        self._clear()
        raise TrainerError(
            f"The {what} is {value}; the weights were left as they are. "
            "Lower trainer.lr, or look for log-probabilities of -inf in the batch."
        )


class _Given:
    """A loss whose gradient for what a pass gives is `slopes`."""

    def __init__(self, loss: BatchLoss, slopes: tuple[Tensor, ...]) -> None:
        self._loss, self._slopes = loss, slopes

    def __call__(self, _part: MicroBatch, passed: Passed) -> Tensor:
        pairs = zip(self._loss.with_gradient(passed), self._slopes, strict=True)
        # The slope of what is infinite is 0, and 0 x inf is not.
        return sum(((x.masked_fill(~x.isfinite(), 0) * slope).sum() for x, slope in pairs), passed.nothing())
