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
from ale_trainer_torch.policy import Passed

Forward = Callable[..., Passed]
"""Takes a micro-batch and whether entropies are wanted (`entropy=`)."""


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
        found = self._forward(part, entropy=True)
        assert found.entropy is not None
        self._backward(part.index, found if self._of_entropy else found._replace(entropy=found.entropy.detach()))

    def look_ahead(self, group: LossGroup) -> Iterator[tuple[MicroBatch, tuple[Tensor, ...]]]:
        """Compute the one loss of several micro-batches; return each with the loss's gradients for what its pass gives
        that may have one."""
        with torch.no_grad():
            found = [self._forward(part, entropy=True) for part in group]
        logprobs, entropy, values = (None if x[0] is None else torch.cat(x) for x in zip(*found, strict=True))
        assert logprobs is not None
        whole = Passed(logprobs, entropy, values)
        for tensor in self._with_gradient(whole):
            tensor.requires_grad_()
        self._backward(np.concatenate([part.index for part in group]), whole)
        slopes = [torch.zeros_like(x) if x.grad is None else x.grad for x in self._with_gradient(whole)]
        sizes = [len(passed.logprobs) for passed in found]
        return zip(group, zip(*(torch.split(x, sizes) for x in slopes), strict=True), strict=True)

    def add_given(self, part: MicroBatch, given: tuple[Tensor, ...]) -> None:
        """Add the gradient of a micro-batch whose loss `look_ahead` computed."""
        torch.autograd.backward(self._with_gradient(self._forward(part, entropy=self._of_entropy)), given)

    def _with_gradient(self, passed: Passed) -> list[Tensor]:
        """Return what a loss may have a gradient for."""
        parts = (passed.logprobs, passed.entropy if self._of_entropy else None, passed.values)
        return [x for x in parts if x is not None]

    def _backward(self, index: npt.NDArray[np.int64], passed: Passed) -> None:
        out = self._loss(self._loss_input(index, passed))
        self.totals.add(float(out.loss.detach()), out.sums, out.maxima)
        # A sharded model's other ranks wait for this backward pass, whatever the loss is made of.
        (out.loss + passed.nothing()).backward()

    def _loss_input(self, index: npt.NDArray[np.int64], passed: Passed) -> LossInput:
        batch = self._batch

        def pick(values: npt.NDArray[Any] | None) -> Tensor | None:
            return None if values is None else torch.from_numpy(values[index]).to(self._device)

        return LossInput(
            passed.logprobs,
            passed.entropy,
            pick(batch.old_logprobs),
            pick(batch.engine_logprobs),
            pick(batch.chunk_ids),
            self._chunks,
            batch.normalizer,
            batch.reference_normalizer,
            pick(batch.reference_logprobs),
            {name: pick(column) for name, column in batch.columns.items()},
            passed.values,
        )
