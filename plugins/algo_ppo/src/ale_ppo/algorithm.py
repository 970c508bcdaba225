"""PPO with a critic (Schulman et al., 2017, arXiv:1707.06347), as it is used for language models.

1. `batch` packs all tokens that the policy sampled.
2. `credit`, once the trainer's values are known, gives each token its reward (the episode's at its last token, a step's
   at the last token of its chunk, less a KL penalty), and computes advantages and targets over the step (`gae.py`).
3. `loss` (`loss.py`) is the clipped surrogate, and the error of the value head, which shares the policy's layers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ale.specs.algorithm import Algorithm
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.trainer import TrainBatch
from ale.trajectory import Chunk, Trajectory
from ale_ppo.gae import Numbers, gae, whiten
from ale_ppo.loss import PPOLoss
from ale_torch.losses import Estimator
from ale_torch.losses.groups import reward_of, sampled_size, select_trusted
from ale_torch.losses.overlong import Overlong, length_penalty, was_cut_off
from ale_torch.losses.settings import TEMPERATURE, Correction, require_same_temperature
from ale_torch.losses.token_order import Places, in_order
from ale_train.batches import Credit, pack


class PPO(Driver, Algorithm):
    """The algorithm `ppo`."""

    api_version = ">=1.0,<1.2"
    critic = True

    class Config(PluginConfig):
        """Settings of the algorithm `ppo`."""

        group_size: int = Field(1, gt=0, description="Rollouts per task in a step.")
        gamma: float = Field(1.0, gt=0, le=1, description="Discount per sampled token.")
        gae_lambda: float = Field(
            0.95, ge=0, le=1, description="GAE's lambda per sampled token; 1: returns less values, 0: one step ahead."
        )
        clip_low: float = Field(0.2, gt=0, description="Ratios are clipped below 1 - clip_low.")
        clip_high: float = Field(0.2, gt=0, description="Ratios are clipped above 1 + clip_high.")
        dual_clip: float | None = Field(
            None, gt=1, description="The objective of a token with an advantage A below 0 is at least dual_clip A."
        )
        vf_coef: float = Field(0.5, ge=0, description="Weight of the value head's error in the loss.")
        vf_clip: float | None = Field(
            0.2, gt=0, description="Values are held within this of what they were before the update; null: no bound."
        )
        whiten: bool = Field(True, description="Advantages get mean 0 and standard deviation 1 over the step's tokens.")
        step_weight: float = Field(
            1.0, ge=0, description="Weight of the rewards of steps (Score.by_chunk) beside the episode's; 0: none."
        )
        entropy_coef: float = Field(0.0, ge=0, description="Weight of the entropy bonus in the loss.")
        reward_kl_coef: float = Field(
            0.0,
            ge=0,
            description="What each nat of KL divergence from the policy that RL began with takes off a token's reward.",
        )
        reward_kl_estimator: Estimator = Field("k1", description="Estimator of that divergence: k1, k2 or k3.")
        kl_coef: float = Field(0.0, ge=0, description="Weight in the loss of that divergence.")
        kl_estimator: Estimator = Field("k3", description="Estimator of the divergence in the loss.")
        overlong: Overlong | None = Field(
            None, description="Soft penalty in the reward for long rollouts (DAPO, Eq. 13). Null: none."
        )
        mask_truncated: bool = Field(False, description="Rollouts that were cut off by a limit have no loss.")
        correction: Correction | None = Field(
            None, description="How the loss makes up for an engine that differs from the trainer, by pi_old/mu."
        )
        temperature: float = Field(1.0, gt=0, description=TEMPERATURE)
        old_logprobs: Literal["recompute", "engine"] = Field(
            "recompute", description="Where pi_old comes from: recomputed by the trainer, or the engine's own logprobs."
        )

        @model_validator(mode="after")
        def _refuse_settings_without_effect(self) -> Self:
            given = self.model_fields_set
            for name, of in (("kl_estimator", "kl_coef"), ("reward_kl_estimator", "reward_kl_coef")):
                if name in given and not getattr(self, of):
                    raise ValueError(f"{name} does nothing with {of} 0; leave it out, or set {of}")
            if self.correction is not None and self.old_logprobs == "engine":
                raise ValueError("correction does nothing with old_logprobs 'engine'; leave one of them out")
            require_same_temperature(
                self.temperature,
                {
                    "old_logprobs 'engine'": self.old_logprobs == "engine",
                    "correction": self.correction is not None,
                    "reward_kl_coef": self.reward_kl_coef > 0,
                },
            )
            return self

    config: Config

    @classmethod
    def needs(cls, config: Any) -> Mapping[str, Collection[str | type]]:
        return {"trainer": ("values",)}

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.group_size = config.group_size
        self.old_logprobs = config.old_logprobs
        self.reference = config.kl_coef > 0 or config.reward_kl_coef > 0

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """Pack the trajectories; a chunk's return is the reward of its episode, for metrics alone."""
        kept = select_trusted(trajectories)
        masked = {id(t) for t in kept if self.config.mask_truncated and was_cut_off(t)}
        rewards = {id(t): self._reward(t) for t in kept}

        def credit(trajectory: Trajectory, chunk: Chunk, position: int, count: int) -> Credit | None:
            if not chunk.sampled or id(trajectory) in masked:
                return None
            return Credit(rewards[id(trajectory)], trajectory.passed)

        batch = pack(kept, credit)
        return None if batch is None else replace(batch, temperature=self.config.temperature)

    def credit(self, batch: TrainBatch, trajectories: Sequence[Trajectory]) -> TrainBatch:
        """Add the columns `advantages` and `targets`, and metrics of the advantages."""
        from ale_torch.losses.kl_penalty import reward_kl

        c = self.config
        costs = reward_kl(batch, c.reward_kl_coef, c.reward_kl_estimator)
        places = in_order(batch)
        rewards = self._token_rewards(batch, places, select_trusted(trajectories)) - costs
        values = batch.columns["values"].astype(np.float64)
        advantages = np.zeros(len(rewards))
        for at in places:
            advantages[at] = gae(rewards[at], values[at], c.gamma, c.gae_lambda)
        at = np.concatenate(places)
        targets = np.where(batch.chunk_ids >= 0, advantages + values, 0.0)
        metrics = {"advantage": float(advantages[at].mean()), "advantage_std": float(advantages[at].std())}
        if c.reward_kl_coef:
            metrics["reward_kl"] = float(costs.sum() / len(places))
        if c.whiten:
            advantages[at] = whiten(advantages[at])
        columns = {"advantages": advantages.astype(np.float32), "targets": targets.astype(np.float32)}
        return replace(batch, columns={**batch.columns, **columns}, metrics={**batch.metrics, **metrics})

    @property
    def loss(self) -> PPOLoss:
        c = self.config
        return PPOLoss(
            clip_low=c.clip_low,
            clip_high=c.clip_high,
            dual_clip=c.dual_clip,
            vf_coef=c.vf_coef,
            vf_clip=c.vf_clip,
            entropy_coef=c.entropy_coef,
            kl_coef=c.kl_coef,
            kl_estimator=c.kl_estimator,
            correction=c.correction,
            use_engine_logprobs=c.old_logprobs == "engine",
        )

    def _reward(self, trajectory: Trajectory) -> float:
        overlong = self.config.overlong
        penalty = 0.0 if overlong is None else length_penalty(sampled_size(trajectory)[1], overlong)
        return reward_of(trajectory) + penalty

    def _token_rewards(self, batch: TrainBatch, places: Sequence[Places], kept: Sequence[Trajectory]) -> Numbers:
        """Return the reward of each token, KL penalty aside; 0 without loss. [N] `places`: see `in_order`."""
        rewards = np.zeros(len(batch.token_ids))
        for at in places:
            rows = batch.chunk_ids[at]
            trajectory = kept[int(batch.chunks.trajectory[rows[0]])]
            assert trajectory.reward is not None
            rewards[at[-1]] += self._reward(trajectory)
            if self.config.step_weight and trajectory.reward.by_chunk:
                for end in np.flatnonzero(np.diff(rows, append=-1)):
                    chunk = trajectory.turns[int(batch.chunks.position[rows[end]])]
                    rewards[at[end]] += self.config.step_weight * trajectory.reward.by_chunk[chunk.index]
        return rewards
