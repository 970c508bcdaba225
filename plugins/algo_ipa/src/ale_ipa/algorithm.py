"""IPA: policy optimization at the level of interaction chunks (paper 3.2.4).

1. `batch` turns rewards into signals and signals into discounted chunk returns (Eq. 7); only chunks that the policy
   sampled carry loss.
2. `loss` weighs each chunk's log-likelihood with its return: weight 1 on successful trajectories, the truncated
   chunk ratio (Eq. 8) on failed ones, and drops chunks on which engine and trainer disagree (Eq. 9).
3. `level` moves return, ratio and mask together to another granularity; each can be set alone, so that the
   paper's baselines are settings: Eq. 6 is `ratio_level: trajectory, mask_level: token, return_level: trajectory`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from ale.packing import Credit, pack
from ale.specs.algorithm import Algorithm
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.trainer import ChunkTable, LossInput, LossOutput, TrainBatch
from ale.trajectory import Chunk, Trajectory
from ale_ipa.loss import Level, chunk_return, policy_loss, segments_of


class IPA(Algorithm):
    """The algorithm `ipa`."""

    class Config(PluginConfig):
        """Settings of the algorithm `ipa`."""

        gamma: float = Field(0.95, gt=0, le=1, description="Discount a chunk (Eq. 7).")
        mismatch_threshold: float = Field(2.0, gt=0, description="H: chunks whose trainer/engine ratio is above it are masked.")
        mismatch_lower: float | None = Field(None, gt=0, description="Mask ratios below this too; null as in the paper.")
        return_signal: Literal["signed", "raw", "group_centered"] = Field("signed", description="R: signed (+1 or negative_signal), raw (the reward), group_centered (reward minus its group's mean).")
        negative_signal: float = Field(-0.05, le=0, description="R of a failed trajectory with `signed`. -1 is TOPR's; small policies collapse below about -0.3.")
        normalization: Literal["token", "chunk", "trajectory"] = Field("token", description="What Z counts, over the whole batch.")
        level: Level = Field("chunk", description="Granularity of return, ratio and mask together.")
        return_level: Level | None = Field(None, description="Granularity of the return alone; only `chunk` discounts.")
        ratio_level: Level | None = Field(None, description="Granularity of the importance ratio alone.")
        mask_level: Level | None = Field(None, description="Granularity of the mismatch mask alone.")
        old_logprobs: Literal["recompute", "engine"] = Field("recompute", description="Where old log-probabilities come from: the trainer with the sampling weights, or the engine.")
        group_size: int = Field(8, gt=0, description="Rollouts of each task in a step.")

        @model_validator(mode="after")
        def _no_idle_settings(self) -> IPA.Config:
            given = self.model_fields_set
            if "negative_signal" in given and self.return_signal != "signed":
                raise ValueError(f"negative_signal does nothing with return_signal '{self.return_signal}'; leave it out")
            if "gamma" in given and (self.return_level or self.level) != "chunk" and self.gamma != 1:
                raise ValueError("gamma discounts chunk by chunk and does nothing at another return level; leave it out")
            if self.old_logprobs == "engine" and "mismatch_threshold" in given:
                raise ValueError("mismatch_threshold compares the trainer with the engine; it needs old_logprobs 'recompute'")
            if self.return_signal == "group_centered" and self.group_size < 2:
                raise ValueError("group_centered needs a group_size of at least 2")
            return self

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.group_size = config.group_size
        self.old_logprobs = config.old_logprobs
        self._dropped_groups = 0

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """See `Algorithm.batch`. Untrusted trajectories are left out, and groups without spread when centered."""
        usable = [t for t in trajectories if t.reward is not None and t.failure is None and t.rejected is None]
        signals = self._signals(usable)
        usable = [t for t in usable if t.id in signals]
        discount = (self.config.return_level or self.config.level) == "chunk"

        def credit(t: Trajectory, chunk: Chunk, position: int, count: int) -> Credit | None:
            if not chunk.sampled:
                return None
            gamma = self.config.gamma if discount else 1.0
            # T+ is what was rewarded, whatever the signal made of it (algorithms.md, "Words").
            return Credit(chunk_return(signals[t.id], gamma, position, count), _reward(t) > 0)

        return pack(usable, credit, self._normalizer)

    def _signals(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """R of each trajectory that carries a gradient."""
        kind = self.config.return_signal
        if kind == "signed":
            return {t.id: 1.0 if _reward(t) > 0 else self.config.negative_signal for t in trajectories}
        if kind == "raw":
            return {t.id: _reward(t) for t in trajectories}
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        for t in trajectories:
            groups[t.group].append(t)
        signals: dict[str, float] = {}
        self._dropped_groups = 0
        for members in groups.values():
            rewards = [_reward(t) for t in members]
            if max(rewards) == min(rewards):
                self._dropped_groups += 1
                continue
            mean = sum(rewards) / len(rewards)
            signals |= {t.id: r - mean for t, r in zip(members, rewards, strict=True)}
        return signals

    def _normalizer(self, table: ChunkTable, tokens: int) -> float:
        match self.config.normalization:
            case "token":
                return float(tokens)
            case "chunk":
                return float(len(table.trajectory))
            case "trajectory":
                return float(len(np.unique(table.trajectory)))

    def loss(self, inputs: LossInput) -> LossOutput:
        """Eq. 9 over one micro-batch."""
        c = self.config
        ids = inputs.chunk_ids
        returns = inputs.chunks.returns[ids].to(inputs.logprobs.dtype)
        positive = inputs.chunks.positive[ids]
        ratio_segments = segments_of(c.ratio_level or c.level, ids, inputs.chunks)
        terms = policy_loss(
            inputs.logprobs, inputs.old_logprobs, inputs.engine_logprobs, returns, positive,
            ratio_segments, segments_of(c.mask_level or c.level, ids, inputs.chunks),
            c.mismatch_threshold, c.mismatch_lower, torch.full_like(returns, 1.0 / inputs.normalizer),
        )  # fmt: skip
        with torch.no_grad():
            n = torch.ones_like(returns)
            sums = {
                "loss_tokens": n.sum(),
                "entropy_sum": inputs.entropy.sum(),
                "positive_tokens": positive.sum(),
                "masked_tokens": (1 - terms.mask).sum(),
                "clipped_tokens": ((terms.ratio > 1) & ~positive).sum(),
                "ratio_sum": terms.ratio.sum(),
                "kl_sum": (inputs.old_logprobs - inputs.logprobs).sum(),
                "engine_gap_sum": (inputs.old_logprobs - inputs.engine_logprobs).abs().sum(),
            }
        return LossOutput(terms.loss, sums)

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Means over the tokens with loss.

        `entropy` in nats; `ratio` pi/pi_old before this update; `kl_old` the plain estimate of KL(pi_old, pi);
        `engine_gap` mean |log pi_old - log mu|; `masked`, `clipped`, `positive` are shares.
        """
        out = dict(totals)
        n = max(1.0, out.get("loss_tokens", 0.0))
        for name, source in (
            ("entropy", "entropy_sum"), ("positive", "positive_tokens"), ("masked", "masked_tokens"),
            ("clipped", "clipped_tokens"), ("ratio", "ratio_sum"), ("kl_old", "kl_sum"), ("engine_gap", "engine_gap_sum"),
        ):  # fmt: skip
            out[name] = out.pop(source, 0.0) / n
        if self.config.return_signal == "group_centered":
            out["dropped_groups"] = float(self._dropped_groups)
        return out


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None
    return trajectory.reward.value
