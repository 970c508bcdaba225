"""The loss of a batch on one rank: it puts the results of forward passes into the algorithm's loss function.

A loss that looks at more than one micro-batch (a trajectory that is larger than one) needs all its log-probabilities at
once, but not all their graphs. So it is computed from log-probabilities without graph (`look_ahead`); its gradient with
respect to each of them is kept, and given to a second pass of each micro-batch. The chain rule makes this exact, for
any loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.specs.trainer import ChunkTensors, Loss, LossInput, TrainBatch
from ale_torch.training.microbatch import LossGroup


class Passed(NamedTuple):
    """The results of a forward pass for the wanted tokens, [M] each; None if it was not asked for or has no such
    head."""

    logprobs: Tensor
    entropy: Tensor | None
    values: Tensor | None

    def nothing(self) -> Tensor:
        """Return a 0 whose backward pass goes through all parameters, as that of a sharded model must on every rank."""
        # 0 x -inf, the log-probability of an impossible token, is not 0.
        zero = self.logprobs.masked_fill(~self.logprobs.isfinite(), 0).sum() * 0
        return zero if self.values is None else zero + self.values.sum() * 0


@dataclass(slots=True)
class Totals:
    """The sum of several losses: `LossOutput` with numbers in place of tensors."""

    loss: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, loss: float, sums: Mapping[str, Any], maxima: Mapping[str, Any]) -> None:
        """Add the loss of one more micro-batch."""
        self.loss += loss
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + _number(value)
        for name, value in maxima.items():
            self.maxima[name] = max(self.maxima.get(name, -math.inf), _number(value))

    @classmethod
    def over(cls, parts: Iterable[Totals]) -> Totals:
        """Add up the totals of several ranks."""
        total = cls()
        for part in parts:
            total.add(part.loss, part.sums, part.maxima)
        return total


def _number(value: Any) -> float:
    """Return a metric as a number; it may be a tensor that still has its graph."""
    return float(value.detach() if isinstance(value, Tensor) else value)


class BatchLoss:
    """The loss function of a batch; it adds what it computes to `totals`."""

    def __init__(self, device: torch.device, batch: TrainBatch, loss: Loss) -> None:
        self.totals = Totals()
        self.entropy_gradient = loss.entropy_gradient
        self._device = device
        self._batch = batch
        self._loss = loss
        c = batch.chunks
        columns = (c.trajectory, c.position, c.count, c.returns, c.positive, c.sampled)
        self._chunks = ChunkTensors(*(torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in columns))

    def of(self, index: npt.NDArray[np.int64], passed: Passed) -> Tensor:
        """Compute the loss of the tokens at `index` in the batch. A scalar."""
        if not self.entropy_gradient and passed.entropy is not None:
            passed = passed._replace(entropy=passed.entropy.detach())
        out = self._loss(self._loss_input(index, passed))
        self.totals.add(float(out.loss.detach()), out.sums, out.maxima)
        total: Tensor = out.loss
        return total

    def look_ahead(self, group: LossGroup, found: list[Passed]) -> list[tuple[Tensor, ...]]:
        """Compute the one loss of several micro-batches, of which `found` was passed without gradient; return the
        loss's gradients with respect to those results of each pass that may have one (`with_gradient`)."""
        logprobs, entropy, values = (None if x[0] is None else torch.cat(x) for x in zip(*found, strict=True))
        assert logprobs is not None
        whole = Passed(logprobs, entropy, values)
        for tensor in self.with_gradient(whole):
            tensor.requires_grad_()
        loss = self.of(np.concatenate([part.index for part in group]), whole)
        torch.autograd.backward([loss + whole.nothing()])  # a loss may depend on none of them
        slopes = [torch.zeros_like(x) if x.grad is None else x.grad for x in self.with_gradient(whole)]
        sizes = [len(passed.logprobs) for passed in found]
        return list(zip(*(torch.split(x, sizes) for x in slopes), strict=True))

    def with_gradient(self, passed: Passed) -> list[Tensor]:
        """Return the results for which a loss may have a gradient."""
        parts = (passed.logprobs, passed.entropy if self.entropy_gradient else None, passed.values)
        return [x for x in parts if x is not None]

    def _loss_input(self, index: npt.NDArray[np.int64], passed: Passed) -> LossInput:
        batch = self._batch

        def pick(values: npt.NDArray[Any] | None) -> Tensor | None:
            return None if values is None else torch.from_numpy(values[index]).to(self._device)

        return LossInput(
            logprobs=passed.logprobs,
            entropy=passed.entropy,
            old_logprobs=pick(batch.old_logprobs),
            engine_logprobs=pick(batch.engine_logprobs),
            chunk_ids=pick(batch.chunk_ids),
            chunks=self._chunks,
            normalizer=batch.normalizer,
            reference_normalizer=batch.reference_normalizer,
            reference_logprobs=pick(batch.reference_logprobs),
            columns={name: pick(column) for name, column in batch.columns.items()},
            values=passed.values,
        )
