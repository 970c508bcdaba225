"""Rollouts that are too long: a soft penalty in the reward, and those that were cut off.

DAPO (Yu et al., 2025, arXiv:2503.14476, section 3.4): a rollout that was cut off does not show how it would have
ended, so its reward of zero is noise. Its loss is masked, or its length is made to cost before it is cut off (Eq.
13)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from ale.specs.driver import PluginConfig
from ale.trajectory import CUT_OFF, Trajectory


class Overlong(PluginConfig):
    """Settings of the soft penalty."""

    max_tokens: int = Field(gt=0, description="Sampled tokens of a rollout from which on the whole penalty is taken.")
    buffer: int = Field(gt=0, description="So many tokens before max_tokens the penalty begins, and grows evenly.")
    penalty: float = Field(1.0, gt=0, description="What is taken off the reward of a rollout of max_tokens or more.")

    @model_validator(mode="after")
    def _refuse_a_buffer_beyond_the_length(self) -> Self:
        if self.buffer > self.max_tokens:
            raise ValueError(f"buffer ({self.buffer}) is more than max_tokens ({self.max_tokens})")
        return self


def length_penalty(tokens: int, overlong: Overlong) -> float:
    """Return what a rollout of so many sampled tokens gets, 0 or less: Eq. 13 times `penalty`."""
    over = tokens - (overlong.max_tokens - overlong.buffer)
    return -overlong.penalty * min(1.0, max(0.0, over / overlong.buffer))


def was_cut_off(trajectory: Trajectory) -> bool:
    """Return whether the rollout ended by a limit: of its last response (`rollout.max_tokens`), or of the episode."""
    turns = trajectory.turns
    return trajectory.ended_by in CUT_OFF or (bool(turns) and turns[-1].finish_reason == "length")
