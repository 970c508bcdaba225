"""Settings that policy-gradient algorithms share: the temperature of the loss, and the correction for an engine that
samples from another distribution than the trainer computes with. Nothing here needs torch.

The trainer divides its logits by the temperature (`TrainBatch.temperature`), so that the loss is that of the
distribution that was sampled from. Engines report log-probabilities at temperature 1, so whatever compares the
trainer's with theirs is refused at another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from ale.specs.driver import PluginConfig

TEMPERATURE = (
    "What the trainer divides logits by before it takes log-probabilities and entropies; with rollout.temperature "
    "the loss is that of the policy that sampled."
)


def require_same_temperature(temperature: float, of_engine: Mapping[str, bool]) -> None:
    """Raise `ValueError` if a setting compares with the engine's log-probabilities, which are at temperature 1.

    `of_engine` maps the name of each such setting to whether it is in use."""
    used = [name for name, on in of_engine.items() if on]
    if temperature != 1 and used:
        raise ValueError(
            f"temperature is {temperature:g}, and {used[0]} compares with the engine's log-probabilities, which are "
            "those at temperature 1; leave one of them out"
        )


RatioUnit = Literal["token", "chunk", "trajectory", "sequence"]
"""The unit of a ratio: the token's own, the geometric mean over its chunk or its trajectory, or the product over the
tokens of its trajectory (`sequence`, unbiased and of high variance)."""


class Correction(PluginConfig):
    """Settings of the correction by `rho = pi_old / mu`: the trainer's probability of a sampled token with the weights
    that sampled it, by the engine's. The functions are in `rollout_correction.py`."""

    weight: Literal["none", "truncate", "mask"] = Field(
        "truncate",
        description=(
            "Each token's loss is multiplied by min(rho, cap) (truncate: truncated importance sampling, TIS), or by "
            "rho where it is within 1/cap and cap and by 0 elsewhere (mask: IcePop), or not at all (none)."
        ),
    )
    level: RatioUnit = Field(
        "token",
        description=(
            "Whose rho the weight is: token; chunk and trajectory, geometric means; sequence, the product over a "
            "trajectory."
        ),
    )
    cap: float = Field(2.0, gt=1, description="Upper bound of the weight.")
    reject: tuple[float, float] | None = Field(
        None,
        description=(
            "Two bounds: tokens whose rho at reject_level is outside have no loss, and do not count in its mean. Null: "
            "none is rejected."
        ),
    )
    reject_level: RatioUnit = Field("trajectory", description="Whose rho is held against the bounds of reject.")

    @model_validator(mode="after")
    def _refuse_settings_without_effect(self) -> Self:
        if self.reject is None and self.weight == "none":
            raise ValueError("weight 'none' without reject corrects nothing; leave correction out")
        if self.reject is not None and not 0 <= self.reject[0] < self.reject[1]:
            raise ValueError(f"reject needs two bounds, the smaller one first, not {list(self.reject)}")
        given = self.model_fields_set
        if self.weight == "none" and given & {"cap", "level"}:
            raise ValueError(f"{' and '.join(sorted(given & {'cap', 'level'}))} do nothing with weight 'none'")
        if self.reject is None and "reject_level" in given:
            raise ValueError("reject_level does nothing without reject")
        return self
