"""The model being trained and its optimizer: the blocking part of the trainer, used from one thread of each rank.

An update cuts the batch into micro-batches, adds up their gradients (`accumulate`), checks that all are finite, clips,
and steps once (`step`). The loss is an argument of the call. The reference policy is a frozen copy of the model, whose
log-probabilities are computed in the same way.

Over several ranks, or where masters are wider than what is computed with, the model is sharded (`sharding.py`). All
ranks make the same calls with the same batch; each computes its share, and all return the totals. A pass of a sharded
model needs every rank, so that one with fewer micro-batches makes empty passes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.errors import TrainerError
from ale.specs.trainer import Loss, PolicyRole, TrainBatch
from ale_torch.ranks.world import World
from ale_torch.training.batch_loss import Passed, Totals
from ale_torch.training.checkpoint_folder import OPTIMIZER_FOLDER
from ale_torch.training.microbatch import LossGroup, MicroBatch, cut, padding_waste
from ale_torch.training.model_folder import read_model, save_pretrained
from ale_torch.training.sleep import tensors_of
from ale_trainer_torch.gradients import Gradients
from ale_trainer_torch.lora import add_adapters, write_adapter
from ale_trainer_torch.optimizer import Optimization, make_optimizer, set_rates
from ale_trainer_torch.policy import Policy
from ale_trainer_torch.sharding import PolicyModule, gather_weights, shard, whole_copy, whole_number

ADAPTER_FOLDER = "adapter"

Compute = Callable[..., Passed]
"""`Policy.logprobs`, or a sharded model's module that calls it."""


@dataclass(frozen=True, slots=True)
class Accumulated:
    """The totals over all micro-batches of a batch: losses, metrics of the loss function, share of padding."""

    loss: float
    metrics: dict[str, float]
    padding_waste: float


class Learner:
    """A policy, its AdamW, and a reference policy if one was loaded. The policy was read from `folder`."""

    def __init__(self, folder: Path, device: torch.device, how: Optimization, world: World | None = None) -> None:
        self.folder = folder
        self.world = world or World()
        self.device = device
        self.how = how
        # What is frozen needs no more precision than the pass.
        self.model = self._read(folder, how.dtype if how.lora else how.master_dtype)
        if how.lora:
            add_adapters(self.model, how.lora)
        self.version = 0
        self._policy = Policy.of(self.model, packing=how.packing, chunk_tokens=how.logit_chunk)
        if how.value_head:
            self._policy = self._policy.with_value_head(how.master_dtype)
        self._compute = self._prepare(self._policy)
        self._compute_reference: Compute | None = None
        self.reference: Any = None
        if how.gradient_checkpointing:
            checkpoint_layers(self.model)
        self.optimizer = make_optimizer(self.model.parameters(), how)

    def read_reference(self, folder: Path) -> None:
        """Read the reference policy from a model folder."""
        model = self._read(folder, self.how.dtype)
        model.requires_grad_(False)
        self._compute_reference, self.reference = self._prepare(self._policy.with_model(model)), model

    def write_reference(self, folder: Path) -> None:
        """Write the reference policy as a model folder, if there is one."""
        if self.reference is None:
            return
        weights = gather_weights(self.reference, self.how.dtype, wanted=self.world.rank == 0)
        if self.world.rank == 0:
            save_pretrained(folder, self.reference, weights)

    def write_optimizer(self, checkpoint: Path) -> None:
        """Write the optimizer's state, and `adapter/`, as `peft` writes it, if adapters are trained: the weights of a
        checkpoint have them merged."""
        from ale_trainer_torch.optimizer_state import write_shards  # which takes a second to import

        if self.how.lora is not None:
            write_adapter(
                checkpoint / ADAPTER_FOLDER, self.model, self.how.lora, whole_copy, first=self.world.rank == 0
            )
        write_shards(checkpoint / OPTIMIZER_FOLDER, self.model, self.optimizer, masters=self.how.has_masters)

    def read_optimizer(self, checkpoint: Path) -> None:
        """Read the optimizer's state. Raises `ConfigError` or `TrainerError`."""
        from ale_trainer_torch.optimizer_state import read_shards

        read_shards(checkpoint / OPTIMIZER_FOLDER, self.model, self.optimizer, masters=self.how.has_masters)

    def tensors(self) -> Iterator[Tensor]:
        """Free what was gathered of a sharded model for a pass."""
        for compute in (self._compute, self._compute_reference):
            if isinstance(compute, PolicyModule):
                compute.reshard()  # type: ignore[operator]  # `fully_shard` has made it a module that can
        yield from tensors_of(self.model, self.reference, optimizers=[self.optimizer])

    @torch.no_grad()
    def logprobs(self, batch: TrainBatch, role: PolicyRole = "current") -> npt.NDArray[np.float32]:
        """Log-probability of each token with loss, 0 elsewhere. [N]

        The batch is cut as in an update, so that the same weights give bitwise the same numbers in both.
        """
        compute = self._compute if role == "current" else self._compute_reference
        if compute is None:
            raise TrainerError(
                "The trainer 'torch' has no reference policy yet; load one with load(folder, 'reference')."
            )
        return self._of_tokens(batch, compute, "logprobs")

    @torch.no_grad()
    def values(self, batch: TrainBatch) -> npt.NDArray[np.float32]:
        """[N]"""
        if self._policy.value_head is None:
            raise TrainerError("The trainer 'torch' has no value head; set trainer.value_head to true.")
        return self._of_tokens(batch, self._compute, "values")

    def _of_tokens(self, batch: TrainBatch, compute: Compute, name: str) -> npt.NDArray[np.float32]:
        """Return what passes give under this name of each token with loss, 0 elsewhere. [N]"""
        shares = [list(chain.from_iterable(groups)) for groups in self._cut(batch)]
        mine = shares[self.world.rank]
        passed = ((part, self.forward(part, compute=compute, temperature=batch.temperature)) for part in mine)
        found = [(part.index, getattr(of, name).cpu().numpy()) for part, of in passed]
        for _ in range(max(map(len, shares)) - len(mine)):
            self._pass_nothing(compute)
        out = np.zeros(len(batch.token_ids), dtype=np.float32)
        for index, values in chain.from_iterable(self.world.gather(found)):
            out[index] = values
        return out

    def update(
        self, batch: TrainBatch, loss: Loss, lr: float | None, weight_decay: float | None = None
    ) -> dict[str, float]:
        """One optimizer step; see `TrainerBackend.update`."""
        began = time.monotonic()
        lr = self.how.lr if lr is None else lr
        self.optimizer.zero_grad(set_to_none=True)
        found = self.accumulate(batch, loss)
        norm = self.step(lr, weight_decay)
        return found.metrics | {
            "loss": found.loss,
            "grad_norm": norm,
            "grad_clipped": float(norm > self.how.max_grad_norm),
            "lr": lr,
            "tokens": float(len(batch.token_ids)),
            "padding_waste": found.padding_waste,
            "seconds": time.monotonic() - began,
        }

    def accumulate(self, batch: TrainBatch, loss: Loss) -> Accumulated:
        """Add the gradient of a batch to the accumulated gradients."""
        shares = self._cut(batch)
        gradients = Gradients(partial(self.forward, temperature=batch.temperature), self.device, batch, loss)
        # The passes of each rank: first those without gradient, of what is larger than a micro-batch.
        ahead, passes = ([_count(share, group_size) for share in shares] for group_size in (2, 1))
        rank = self.world.rank
        mine = [
            (part, given) for group in shares[rank] if len(group) > 1 for part, given in gradients.look_ahead(group)
        ]
        with torch.no_grad():
            for _ in range(max(ahead) - ahead[rank]):
                self._pass_nothing(self._compute)
        for group in shares[rank]:
            if len(group) == 1:
                gradients.add(group[0])
        for part, given in mine:
            gradients.add_given(part, given)
        for _ in range(max(passes) - passes[rank]):
            torch.autograd.backward([self._pass_nothing(self._compute).nothing()])
        totals = Totals.over(self.world.gather(gradients.totals))
        self._require_finite(totals.loss, "loss")
        parts = [part for share in shares for group in share for part in group]
        return Accumulated(totals.loss, totals.sums | totals.maxima, padding_waste(parts))

    def step(self, lr: float, weight_decay: float | None = None) -> float:
        """Step along the accumulated gradient and clear it; return its norm before clipping."""
        norm = whole_number(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.how.max_grad_norm))
        self._require_finite(norm, "gradient norm")
        set_rates(self.optimizer, lr, self.how.weight_decay if weight_decay is None else weight_decay)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def weights(self) -> dict[str, Tensor]:
        """Return copies of all weights by their Hugging Face names, on rank 0; tied ones share a copy."""
        return gather_weights(self.model, self.how.dtype, wanted=self.world.rank == 0)

    def forward(
        self, part: MicroBatch, *, compute: Compute | None = None, temperature: float = 1.0, entropy: bool = False
    ) -> Passed:
        """Pass a micro-batch through the policy, or `compute`."""
        tokens = torch.from_numpy(part.tokens).to(self.device)
        wanted = torch.from_numpy(part.wanted).to(self.device)
        try:
            return (compute or self._compute)(tokens, wanted, part.lengths, temperature=temperature, entropy=entropy)
        except torch.OutOfMemoryError as error:
            raise TrainerError(
                f"A micro-batch of {tokens.numel()} tokens does not fit into the device's memory; lower "
                "trainer.micro_batch_tokens or trainer.logit_chunk, or set trainer.gradient_checkpointing. A sequence "
                "is in one micro-batch: if it alone is that many tokens, lower rollout.max_context."
            ) from error
        except IndexError as error:
            longest = max(part.lengths or [tokens.shape[1]])
            limit = getattr(self.model.config, "max_position_embeddings", "?")
            raise TrainerError(
                f"The model cannot take this batch: its longest sequence has {longest} tokens (the model's "
                f"context: {limit}), its highest token id is {int(tokens.max())} (the model's vocabulary: "
                f"{self.model.config.vocab_size}). Lower rollout.max_context, or use the model's own tokenizer."
            ) from error

    def _read(self, folder: Path, dtype: torch.dtype) -> Any:
        """Read a model. One that is to be sharded stays in the CPU's memory until then: the device need not hold it."""
        model = read_model(folder, dtype)
        return model if torch.distributed.is_initialized() else model.to(self.device)

    def _prepare(self, policy: Policy) -> Compute:
        if not torch.distributed.is_initialized():
            return policy.logprobs
        return shard(policy, self.how, self.device)

    def _pass_nothing(self, compute: Compute) -> Passed:
        """Pass two tokens whose result is not used, because the other ranks wait for this one."""
        tokens = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        wanted = torch.tensor([[False, True]], device=self.device)
        return compute(tokens, wanted, [2] if self._policy.packs else None)

    def _cut(self, batch: TrainBatch) -> list[list[LossGroup]]:
        return cut(batch, self.how.micro_batch_tokens, end_to_end=self._policy.packs, ranks=self.world.size)

    def _require_finite(self, value: float, what: str) -> None:
        if math.isfinite(value):
            return
        self.optimizer.zero_grad(set_to_none=True)
        raise TrainerError(
            f"The {what} is {value}; the weights were left as they are. "
            "Lower trainer.lr, or look for log-probabilities of -inf in the batch."
        )


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


def _count(share: Iterable[LossGroup], least: int) -> int:
    """Count the micro-batches in groups of at least that size."""
    return sum(len(group) for group in share if len(group) >= least)
