"""The gradient of one batch on one rank: the loss of each micro-batch, backward, and the totals.

A loss that looks at more than one micro-batch (a trajectory that is larger than one) needs all its log-probabilities at
once, but not all their graphs. So it is computed from log-probabilities without graph; its gradient with respect to
each of them is kept, and given to a second pass of each micro-batch. The chain rule makes this exact, for any loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.specs.trainer import ChunkTensors, LossFunction, LossInput, TrainBatch
from ale_trainer_torch.microbatch import LossGroup, MicroBatch

Forward = Callable[..., tuple[Tensor, Tensor | None]]
"""Takes a micro-batch and whether entropies are wanted (`entropy=`); returns these and the log-probabilities."""


@dataclass(slots=True)
class Totals:
    """What losses come to together: `LossOutput` with numbers in the place of tensors."""

    loss: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, loss: float, sums: Mapping[str, Any], maxima: Mapping[str, Any]) -> None:
        """Add one more."""
        self.loss += loss
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
        for name, value in maxima.items():
            self.maxima[name] = max(self.maxima.get(name, -math.inf), float(value))

    @classmethod
    def over(cls, parts: Iterable[Totals]) -> Totals:
        """Add up those of several ranks."""
        total = cls()
        for part in parts:
            total.add(part.loss, part.sums, part.maxima)
        return total


class Gradients:
    """Adds to the gradients of the model that `forward` passes through, and to `totals`."""

    def __init__(self, forward: Forward, device: torch.device, batch: TrainBatch, loss: LossFunction) -> None:
        self.totals = Totals()
        self._forward = forward
        self._device = device
        self._batch = batch
        self._loss = loss
        self._of_entropy = bool(getattr(loss, "entropy_gradient", False))
        c = batch.chunks
        columns = (c.trajectory, c.position, c.count, c.returns, c.positive, c.sampled)
        self._chunks = ChunkTensors(*(torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in columns))

    def add(self, part: MicroBatch) -> None:
        """Add the gradient of a micro-batch with a loss of its own."""
        logprobs, entropy = self._forward(part, entropy=True)
        assert entropy is not None
        self._backward(part.index, logprobs, entropy if self._of_entropy else entropy.detach())

    def look_ahead(self, group: LossGroup) -> Iterator[tuple[MicroBatch, tuple[Tensor, ...]]]:
        """Compute the one loss of several micro-batches; return each with the loss's gradients for its
        log-probabilities and its entropies."""
        with torch.no_grad():
            found = [self._forward(part, entropy=True) for part in group]
        logprobs = torch.cat([logprobs for logprobs, _ in found]).requires_grad_()
        entropy = torch.cat([entropy for _, entropy in found if entropy is not None]).requires_grad_(self._of_entropy)
        self._backward(np.concatenate([part.index for part in group]), logprobs, entropy)
        slopes = [torch.zeros_like(x) if x.grad is None else x.grad for x in (logprobs, entropy)]
        sizes = [len(logprobs) for logprobs, _ in found]
        return zip(group, zip(*(torch.split(x, sizes) for x in slopes), strict=True), strict=True)

    def add_given(self, part: MicroBatch, given: tuple[Tensor, ...]) -> None:
        """Add the gradient of a micro-batch whose loss `look_ahead` computed."""
        logprobs, entropy = self._forward(part, entropy=self._of_entropy)
        torch.autograd.backward([logprobs] if entropy is None else [logprobs, entropy], given[: 1 + self._of_entropy])

    def _backward(self, index: npt.NDArray[np.int64], logprobs: Tensor, entropy: Tensor) -> None:
        out = self._loss(self._loss_input(index, logprobs, entropy))
        self.totals.add(float(out.loss.detach()), out.sums, out.maxima)
        # A sharded model's other ranks wait for this backward pass, whatever the loss is made of.
        (out.loss if out.loss.requires_grad else logprobs.sum() * 0).backward()

    def _loss_input(self, index: npt.NDArray[np.int64], logprobs: Tensor, entropy: Tensor) -> LossInput:
        batch = self._batch

        def pick(values: npt.NDArray[Any] | None) -> Tensor | None:
            return None if values is None else torch.from_numpy(values[index]).to(self._device)

        return LossInput(
            logprobs,
            entropy,
            pick(batch.old_logprobs),
            pick(batch.engine_logprobs),
            pick(batch.chunk_ids),
            self._chunks,
            batch.normalizer,
            batch.reference_normalizer,
            pick(batch.reference_logprobs),
        )
