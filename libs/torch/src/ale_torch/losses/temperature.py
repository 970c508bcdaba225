"""Losses of the distribution that was sampled from, where rollouts were sampled at another temperature than 1.

The trainer divides its logits by the temperature (`TrainBatch.temperature`). Engines report log-probabilities at
temperature 1, so that what compares the trainer's with theirs is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

TEMPERATURE = (
    "What the trainer divides logits by before it takes log-probabilities and entropies; with rollout.temperature "
    "the loss is that of the policy that sampled."
)


def require_same_temperature(temperature: float, of_engine: Mapping[str, bool]) -> None:
    """Raise `ValueError` if a setting compares with the engine's log-probabilities, which are at temperature 1.

    `of_engine` says of each such setting, by its name, whether it is in use."""
    used = [name for name, on in of_engine.items() if on]
    if temperature != 1 and used:
        raise ValueError(
            f"temperature is {temperature:g}, and {used[0]} compares with the engine's log-probabilities, which are "
            "those at temperature 1; leave one of them out"
        )
