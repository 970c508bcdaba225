"""The gradient of one batch on one rank: a pass, the loss, and backward, a micro-batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ale.specs.trainer import Loss, TrainBatch
from ale_torch.training.batch_loss import BatchLoss, Passed, Totals
from ale_torch.training.microbatch import LossGroup, MicroBatch

Forward = Callable[..., Passed]
"""Takes a micro-batch and whether entropies are wanted (`entropy=`)."""


class Gradients:
    """Adds to the gradients of the model that `forward` passes through, and to `totals`."""

    def __init__(self, forward: Forward, device: torch.device, batch: TrainBatch, loss: Loss) -> None:
        self._forward = forward
        self._loss = BatchLoss(device, batch, loss)

    @property
    def totals(self) -> Totals:
        """The sum of the losses so far."""
        return self._loss.totals

    def add(self, part: MicroBatch) -> None:
        """Add the gradient of a micro-batch with a loss of its own."""
        found = self._forward(part, entropy=True)
        # A sharded model's other ranks wait for this backward pass, whatever the loss is made of.
        torch.autograd.backward([self._loss.of(part.index, found) + found.nothing()])

    def look_ahead(self, group: LossGroup) -> Iterator[tuple[MicroBatch, tuple[Tensor, ...]]]:
        """Compute the one loss of several micro-batches; return each with the arguments of `add_given`."""
        with torch.no_grad():
            found = [self._forward(part, entropy=True) for part in group]
        return zip(group, self._loss.look_ahead(group, found), strict=True)

    def add_given(self, part: MicroBatch, given: tuple[Tensor, ...]) -> None:
        """Add the gradient of a micro-batch whose loss `look_ahead` computed."""
        found = self._forward(part, entropy=self._loss.entropy_gradient)
        torch.autograd.backward(self._loss.with_gradient(found), given)
