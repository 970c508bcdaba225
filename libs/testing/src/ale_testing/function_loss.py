"""A loss that is a function, for tests of trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ale.specs.trainer import Loss, LossInput, LossOutput


@dataclass(frozen=True)
class FunctionLoss(Loss):
    """It computes the loss of a micro-batch by a function. The entropy that the function gets has no gradient."""

    function: Callable[[LossInput], LossOutput]

    def __call__(self, inputs: LossInput) -> LossOutput:
        return self.function(inputs)
