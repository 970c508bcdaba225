"""A family of policy gradients without a critic, which serve as baselines for chunk-level methods.

1. `batch` turns rewards into one advantage per trajectory (`advantages`), and rewards of steps, where the score has
   them, into one more for each chunk. A rollout without a trusted reward is left out before any statistic is computed.
   Even groups have no advantage; they are counted. With a KL penalty in the reward and no baseline tokens differ.
2. `loss` (`loss.py`) calls a pure function for each variant (`reinforce`, `topr`, `ppo`, `cispo`) over all
   tokens that the policy sampled. The unit is the trajectory, however many sequences it has.
3. `variants` defines what each `variant` fixes and which settings act on it; other settings are refused.

The settings can be checked without torch, which is imported only when the loss is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ale.specs.algorithm import Algorithm, RunOutline
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.trainer import TrainBatch
from ale.trajectory import Chunk, Trajectory
from ale_pg.advantages import advantages, step_advantages
from ale_pg.loss import ADVANTAGES, PolicyGradientLoss
from ale_pg.variants import GROUP_BASELINES, RULES, Baseline, ReturnSignal, Scale, Settings, Variant, weigh_trajectory
from ale_torch.losses import Estimator, Level
from ale_torch.losses.groups import groups_of, reward_of, sampled_size, select_trusted
from ale_torch.losses.overlong import Overlong, length_penalty, was_cut_off
from ale_torch.losses.settings import TEMPERATURE, Correction, require_same_temperature
from ale_train.batches import Credit, pack

FOR_ALL = {
    "variant", "group_size", "kl_coef", "kl_estimator", "reward_kl_coef", "reward_kl_estimator", "entropy_coef",
    "correction", "overlong", "mask_truncated", "temperature",
}  # fmt: skip
"""Settings that act with every variant."""


class PolicyGradient(Driver, Algorithm):
    """The algorithm `pg`."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the algorithm `pg`; null is the variant's own value (see its README)."""

        variant: Variant = Field("grpo", description="The loss, such as grpo, dapo or rloo (README: all of them).")
        group_size: int = Field(8, gt=0, description="Rollouts per task in a step.")
        kl_coef: float = Field(
            0.0,
            ge=0,
            description=(
                "Weight in the loss of the KL divergence from the policy that RL began with; 0: no such term, and no "
                "reference policy is kept."
            ),
        )
        kl_estimator: Estimator = Field(
            "k3",
            description=(
                "Estimator of that divergence: k3 (low variance), k2 (its gradient is the divergence's), k1 (as a loss "
                "it has no gradient in expectation)."
            ),
        )
        reward_kl_coef: float = Field(
            0.0,
            ge=0,
            description=(
                "What is taken off the reward for each nat of the KL divergence from the policy that RL began with, "
                "summed over the rollout's tokens (without a baseline: over those from each token on); 0: nothing."
            ),
        )
        reward_kl_estimator: Estimator = Field("k1", description="Estimator of that divergence: k1, k2 or k3.")
        entropy_coef: float = Field(
            0.0, ge=0, description="Weight in the loss of minus the policy's entropy (entropy bonus); 0: no such term."
        )
        baseline: Baseline | None = Field(
            None,
            description=(
                "What is subtracted from a reward: the mean of the batch, of its group, or of the other rewards in "
                "its group."
            ),
        )
        scale: Scale | None = Field(
            None,
            description=(
                "What an advantage is divided by: the standard deviation of its group (group_std), or of the batch, "
                "each trajectory once (batch_std) or as often as it has tokens (token_std, REINFORCE++'s whitening)."
            ),
        )
        return_signal: ReturnSignal | None = Field(
            None, description="raw: the reward; signed: 1 for a pass, negative_signal for a failure."
        )
        negative_signal: float | None = Field(
            None,
            le=0,
            description="Signal of a failed trajectory (default -0.05). TOPR uses -1; small policies may collapse.",
        )
        normalization: Literal["token", "trajectory", "trajectory_mean"] | None = Field(
            None,
            description="How the loss is averaged: over tokens, over trajectories' sums, or over trajectories' means.",
        )
        gamma: float | None = Field(
            None, gt=0, le=1, description="Discount of rewards of steps, per chunk (default 1; gigpo 0.95)."
        )
        step_weight: float | None = Field(
            None,
            ge=0,
            description="Weight of the advantages of steps (Score.by_chunk) beside the episode's (default 1); 0: none.",
        )
        clip_low: float | None = Field(None, gt=0, description="Ratios are clipped below 1 - clip_low.")
        clip_high: float | None = Field(None, gt=0, description="Ratios are clipped above 1 + clip_high.")
        dual_clip: float | None = Field(
            None,
            gt=1,
            description=(
                "Dual-clip PPO: the objective of a token with an advantage A below 0 is at least dual_clip A, however "
                "large its ratio. Null: no such bound."
            ),
        )
        level: Level | None = Field(
            None,
            description=(
                "What shares a ratio: trajectory (default of tis and topr, Eqs. 4 to 6), chunk, or token (default of "
                "ppo_clip and cispo)."
            ),
        )
        tis_cap: float | None = Field(
            None, gt=0, description="Upper bound of the weights in truncated importance sampling (1 in Eqs. 4 to 6)."
        )
        mismatch_threshold: float | None = Field(
            None, gt=0, description="H: tokens with a larger trainer/engine ratio are masked (Eq. 6; default 2)."
        )
        max_tokens: int | None = Field(
            None,
            gt=0,
            description="Dr. GRPO's constant, by which the sum over a trajectory's tokens is divided (default 1024).",
        )
        overlong: Overlong | None = Field(
            None, description="Soft penalty in the reward for long rollouts (DAPO, Eq. 13). Null: none."
        )
        mask_truncated: bool = Field(
            False,
            description=(
                "Rollouts that were cut off by a limit have no loss, and do not count in its mean; their rewards still "
                "count in their groups."
            ),
        )
        correction: Correction | None = Field(
            None,
            description=(
                "How the loss makes up for an engine that differs from the trainer, by pi_old/mu (README). Null: not "
                "at all."
            ),
        )
        temperature: float = Field(1.0, gt=0, description=TEMPERATURE)
        old_logprobs: Literal["recompute", "engine"] | None = Field(
            None,
            description=(
                "Where pi_old comes from: recomputed by the trainer with the weights that sampled (default), or the "
                "engine's own logprobs."
            ),
        )

        @model_validator(mode="after")
        def _refuse_settings_without_effect(self) -> PolicyGradient.Config:
            rule = RULES[self.variant]
            given = {name for name in self.model_fields_set if getattr(self, name) is not None}
            idle = sorted(given - rule.open - FOR_ALL)
            if idle:
                raise ValueError(
                    f"{', '.join(idle)} cannot be set with the variant '{self.variant}', which takes "
                    f"{', '.join(sorted(rule.open))}; leave it out or choose another variant"
                )
            s = self.settings()
            if "negative_signal" in given and s.return_signal != "signed":
                raise ValueError(f"negative_signal does nothing with return_signal '{s.return_signal}'; leave it out")
            for name, of in (("kl_estimator", "kl_coef"), ("reward_kl_estimator", "reward_kl_coef")):
                if name in given and not getattr(self, of):
                    raise ValueError(f"{name} does nothing with {of} 0; leave it out, or set {of}")
            if "gamma" in given and s.step_weight == 0:
                raise ValueError("gamma does nothing with step_weight 0, which uses no rewards of steps; leave it out")
            if s.scale in ("group_std", "batch_std") and s.baseline == "none":
                raise ValueError(
                    f"scale '{s.scale}' divides differences from a baseline; set a baseline, or scale to none"
                )
            if s.scale == "group_std" and s.baseline not in GROUP_BASELINES:
                raise ValueError(
                    f"scale 'group_std' needs a baseline of the group ({', '.join(GROUP_BASELINES)}), not "
                    f"'{s.baseline}'"
                )
            if self.correction is not None and s.old_logprobs == "engine":
                raise ValueError(
                    "correction does nothing with old_logprobs 'engine', where pi_old is the engine's policy; leave "
                    "one of them out"
                )
            require_same_temperature(
                self.temperature,
                {
                    "old_logprobs 'engine'": s.old_logprobs == "engine",
                    "correction": self.correction is not None,
                    "reward_kl_coef": self.reward_kl_coef > 0,
                    f"the variant '{self.variant}'": "mismatch_threshold" in rule.open,
                },
            )
            if s.baseline in GROUP_BASELINES and self.group_size < 2:
                raise ValueError(f"the baseline '{s.baseline}' needs a group_size of at least 2, not {self.group_size}")
            return self

        def settings(self) -> Settings:
            """The variant's settings, overridden by those that the run file gives."""
            rule = RULES[self.variant]
            given = {name: getattr(self, name) for name in rule.open}
            made = replace(rule.settings, **{name: value for name, value in given.items() if value is not None})
            compares = self.correction is not None and made.old_logprobs == "none"
            return replace(made, old_logprobs="recompute") if compares else made

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.settings = config.settings()
        self.group_size = config.group_size
        self.old_logprobs = self.settings.old_logprobs
        self.reference = config.kl_coef > 0 or config.reward_kl_coef > 0
        self._packs_all = self.reference or config.entropy_coef > 0  # these terms act on every rollout

    @classmethod
    def objections(cls, config: Any, run: RunOutline) -> Iterable[str]:
        """Object to a loss without a ratio if rollouts may be of older policies."""
        if run.async_ratio and config.settings().old_logprobs == "none":
            yield (
                f"rl.async_ratio: the variant '{config.variant}' neither clips nor truncates, so that it must not be "
                "trained on rollouts of older policies; set algorithm.correction or rl.async_ratio=0, or choose "
                "another variant."
            )

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """Pack the trajectories that have a trusted reward.

        A chunk's value is `A + step_weight * A_S`: the advantage of its episode, and that of its step, whose return is
        compared as the episode's reward is, with the other chunks of its group (of its group and state with `gigpo`).
        Even groups have no policy gradient. With a KL term or an entropy bonus they are packed with an advantage of 0;
        else they are left out. Either way they count in the loss's denominator, except with `dapo`, which expects
        `rl.resample_even_groups` to replace them. The metric `dropped_groups` is their number, if there are any.
        """
        return self._pack(select_trusted(trajectories))

    def credit(self, batch: TrainBatch, trajectories: Sequence[Trajectory]) -> TrainBatch:
        """With a KL penalty in the reward the advantages are computed again, for the same
        tokens: beside a reference, even groups are packed too. Without a baseline tokens have their own."""
        from ale_torch.losses.kl_penalty import reward_kl

        c = self.config
        if not c.reward_kl_coef:
            return batch
        kept = select_trusted(trajectories)
        costs = reward_kl(batch, c.reward_kl_coef, c.reward_kl_estimator)
        if self.settings.baseline == "none":
            return self._credit_tokens(batch, kept, costs)
        owners = np.repeat(batch.trajectory, batch.lengths)
        made = self._pack(kept, np.bincount(owners, weights=costs, minlength=len(kept)).tolist())
        assert made is not None
        metrics = {**made.metrics, "reward_kl": float(costs.sum() / len(kept))}
        return replace(made, reference_logprobs=batch.reference_logprobs, columns=batch.columns, metrics=metrics)

    def _credit_tokens(
        self, batch: TrainBatch, kept: Sequence[Trajectory], costs: npt.NDArray[np.float64]
    ) -> TrainBatch:
        """Give each token its own advantage, in a column; a chunk's return is the mean of its tokens'."""
        from ale_pg.advantages import chunk_means, token_advantages

        s, table, trained = self.settings, batch.chunks, batch.chunk_ids >= 0
        values = token_advantages(batch, self._rewards(kept), costs, whitened=s.scale == "token_std")
        of_steps = {(i, k): s.step_weight * value for i, k, value in step_advantages(kept, groups_of(kept), s)}
        places = zip(table.trajectory.tolist(), table.position.tolist(), strict=True)
        values[trained] += np.array([of_steps.get(place, 0.0) for place in places])[batch.chunk_ids[trained]]
        counts = np.array([not self._is_masked(t) for t in kept])
        values[trained] *= counts[table.trajectory[batch.chunk_ids[trained]]]
        returns = chunk_means(batch, values).astype(np.float32)
        return replace(
            batch,
            chunks=replace(table, returns=returns, positive=returns > 0),
            columns={**batch.columns, ADVANTAGES: values.astype(np.float32)},
            metrics={**batch.metrics, "reward_kl": float(costs.sum() / len(kept))},
        )

    def _rewards(self, kept: Sequence[Trajectory]) -> list[float]:
        """Return what is learnt from: rewards or signals, less the penalty on length."""
        s, overlong = self.settings, self.config.overlong
        signed = s.return_signal == "signed"
        rewards = [(1.0 if t.passed else s.negative_signal) if signed else reward_of(t) for t in kept]
        if overlong is None:
            return rewards
        return [r + length_penalty(sampled_size(t)[1], overlong) for r, t in zip(rewards, kept, strict=True)]

    def _is_masked(self, trajectory: Trajectory) -> bool:
        return self.config.mask_truncated and was_cut_off(trajectory)

    def _pack(self, kept: Sequence[Trajectory], costs: Sequence[float] = ()) -> TrainBatch | None:
        """Pack trusted trajectories; `costs` are taken off their rewards."""
        s = self.settings
        sizes = [sampled_size(t)[1] for t in kept]
        rewards = [r - cost for r, cost in zip(self._rewards(kept), costs or [0.0] * len(kept), strict=True)]
        masked = {id(t) for t in kept if self._is_masked(t)}
        made = advantages(rewards, groups_of(kept), s.baseline, s.scale, sizes)
        # Keys are objects, not trajectory ids, because two rollouts may share an id.
        values_of = {id(t): [value] * len(t.turns) for t, value in zip(kept, made.values, strict=True)}
        for i, position, value in step_advantages(kept, groups_of(kept), s):
            values_of[id(kept[i])][position] += s.step_weight * value
        even = {id(kept[i]) for i in made.even if not any(values_of[id(kept[i])])}
        even_groups = sum(all(id(kept[i]) in even for i in members) for members in groups_of(kept))
        tokens = {id(t): size for t, size in zip(kept, sizes, strict=True)}
        if not self._packs_all and not any(
            any(values_of[id(t)]) and tokens[id(t)] and id(t) not in masked for t in kept
        ):
            return None

        def credit(trajectory: Trajectory, chunk: Chunk, position: int, count: int) -> Credit | None:
            out = id(trajectory) in even or id(trajectory) in masked
            if not chunk.sampled or (out and not self._packs_all):
                return None
            value = 0.0 if id(trajectory) in masked else values_of[id(trajectory)][position]
            return Credit(value, value > 0)

        def weight(trajectory: Trajectory, chunks: int, trained: int) -> float:
            if id(trajectory) in masked or (id(trajectory) in even and not s.even_groups_count):
                return 0.0
            return weigh_trajectory(s.normalization, s.max_tokens, tokens[id(trajectory)])

        dropped = {"dropped_groups": float(even_groups)} if even_groups else {}
        batch = pack(kept, credit, weight, dropped)
        return None if batch is None else replace(batch, temperature=self.config.temperature)

    @property
    def loss(self) -> PolicyGradientLoss:
        c = self.config
        return PolicyGradientLoss(
            variant=c.variant,
            settings=self.settings,
            kl_coef=c.kl_coef,
            correction=c.correction,
            entropy_coef=c.entropy_coef,
            kl_estimator=c.kl_estimator,
        )
