"""Defines the variants: their settings, and which of these a user may change.

A variant fixes what its name stands for: GRPO fixes the group's standard deviation, GSPO its ratio. `open` names the
settings that a user may change besides `variant` and `group_size`; any other would silently do nothing, or would make
it a different variant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ale_torch.losses import Level

Variant = Literal[
    "reinforce",
    "tis",
    "topr",
    "topr_token_mask",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "rloo",
    "ppo_clip",
    "cispo",
    "gigpo",
]
Baseline = Literal["none", "batch_mean", "group_mean", "leave_one_out"]
Scale = Literal["none", "group_std", "batch_std", "token_std"]
ReturnSignal = Literal["raw", "signed"]
OldLogprobs = Literal["recompute", "engine", "none"]
Normalization = Literal["token", "trajectory", "trajectory_mean", "constant"]
"""The loss is a mean: over tokens (`token`), or over trajectories of their sums over tokens (`trajectory`), of their
means over tokens (`trajectory_mean`), or of their sums divided by `max_tokens` (`constant`)."""

GROUP_BASELINES = ("group_mean", "leave_one_out")


@dataclass(frozen=True, slots=True)
class Settings:
    """Holds the complete settings of a run."""

    baseline: Baseline = "none"
    scale: Scale = "none"
    return_signal: ReturnSignal = "raw"
    negative_signal: float = -0.05
    normalization: Normalization = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    tis_cap: float = 1.0
    dual_clip: float = 0.0
    """The objective of a token with an advantage A < 0 is at least this times A; 0: there is no such bound."""
    level: Level = "token"
    """The unit that shares a ratio."""
    mismatch_threshold: float = 2.0
    max_tokens: int = 1024
    old_logprobs: OldLogprobs = "recompute"
    gamma: float = 1.0
    """The discount of rewards of steps, per chunk."""
    step_weight: float = 1.0
    """The weight of the advantages of steps beside that of the episode."""
    step_groups: Literal["task", "state"] = "task"
    """Which chunks of a group of rollouts are compared: all, or those that acted in the same state (GiGPO)."""
    even_groups_count: bool = True
    """Whether the mean also counts even groups, which add nothing to its sum. DAPO samples other groups in their place,
    so it does not count them."""


def weigh_trajectory(normalization: Normalization, max_tokens: int, tokens: int) -> float:
    """Return what a trajectory with `tokens` sampled tokens adds to the normalizer."""
    match normalization:
        case "token":
            return float(tokens)
        case "constant":
            return float(max_tokens if tokens else 0)
        case _:
            return float(tokens > 0)


ALWAYS = frozenset({"gamma", "step_weight"})
"""Settings that every variant takes: without rewards of steps they have no effect."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Holds a variant's default settings, and the names of the settings that a user may change."""

    settings: Settings
    open: frozenset[str]


def _rule(settings: Settings, *names: str) -> Rule:
    return Rule(settings, ALWAYS | frozenset(names))


_REWARDS = ("baseline", "scale", "return_signal", "negative_signal", "normalization")
_CLIP = ("clip_low", "clip_high", "old_logprobs")
_SURROGATE = (*_CLIP, "dual_clip")
_TRAJECTORY = Settings(level="trajectory")

RULES: dict[Variant, Rule] = {
    "reinforce": _rule(Settings(old_logprobs="none"), *_REWARDS),
    "tis": _rule(_TRAJECTORY, *_REWARDS, "level", "tis_cap", "old_logprobs"),
    "topr": _rule(replace(_TRAJECTORY, return_signal="signed"), *_REWARDS, "level", "tis_cap", "old_logprobs"),
    "topr_token_mask": _rule(
        replace(_TRAJECTORY, return_signal="signed"), *_REWARDS, "level", "tis_cap", "mismatch_threshold"
    ),
    "grpo": _rule(Settings("group_mean", "group_std", normalization="trajectory_mean"), *_SURROGATE),
    "gigpo": _rule(
        Settings("group_mean", "group_std", normalization="trajectory_mean", gamma=0.95, step_groups="state"),
        *_SURROGATE,
        "scale",
    ),
    "dr_grpo": _rule(Settings("group_mean", normalization="constant"), *_SURROGATE, "max_tokens"),
    "dapo": _rule(Settings("group_mean", "group_std", clip_high=0.28, even_groups_count=False), *_SURROGATE),
    "gspo": _rule(
        Settings(
            "group_mean",
            "group_std",
            normalization="trajectory_mean",
            clip_low=3e-4,
            clip_high=4e-4,
            level="trajectory",
        ),
        *_SURROGATE,
    ),
    "rloo": _rule(Settings("leave_one_out", old_logprobs="none"), "scale", "normalization"),
    "ppo_clip": _rule(Settings("group_mean"), "baseline", "scale", "normalization", "level", *_SURROGATE),
    "cispo": _rule(
        Settings("group_mean", "group_std", clip_low=1.0, clip_high=0.28),
        "baseline",
        "scale",
        "normalization",
        "level",
        *_CLIP,
    ),
}
"""The bounds of DAPO and GSPO are those of their papers; CISPO's paper clips only above and gives no number."""
