"""Policy gradients without a critic, the baselines beside chunk-level methods: one class, a `variant`, its settings.

1. `batch` turns rewards into one advantage a trajectory (`advantages`); a rollout without a reward to be trusted is left
   out before any statistic. Groups without spread are dropped and counted.
2. `loss` is a pure function for each variant (`reinforce`, `topr`, `ppo`, `grpo`, `gspo`, `cispo`), over all tokens that
   the policy sampled. The unit is the trajectory, however many sequences it has.
3. `variants` says what each variant fixes and which settings act on it; the others are refused.

torch is imported by the methods that use it: settings are checked without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from ale.errors import PluginError
from ale.packing import Credit, pack
from ale.specs.algorithm import Algorithm
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.trainer import LossInput, LossOutput, TrainBatch
from ale.trajectory import Chunk, Trajectory
from ale_pg.advantages import advantages
from ale_pg.variants import GROUP_BASELINES, RULES, Baseline, ReturnSignal, Scale, Settings, Variant
from ale_policy_loss.groups import groups_of, reward_of, trusted

if TYPE_CHECKING:
    from torch import Tensor

    from ale_pg.terms import Terms


class PolicyGradient(Algorithm):
    """The algorithm `pg`."""

    api_version = ">=1.1,<1.3"

    class Config(PluginConfig):
        """Settings of the algorithm `pg`; null is the variant's own value (see its README)."""

        variant: Variant = Field("grpo", description="The policy gradient.")
        group_size: int = Field(8, gt=0, description="Rollouts of each task in a step.")
        kl_coef: float = Field(
            0.0,
            ge=0,
            description="Weight of KL(pi || the policy that RL began with) in the loss; 0: none, and no second policy is kept.",
        )
        baseline: Baseline | None = Field(
            None,
            description="What is taken off a reward: the mean of the batch, of its group, or of the group's others.",
        )
        scale: Scale | None = Field(
            None, description="Divide by the standard deviation: group_std (of its group) or batch_std (whitening)."
        )
        return_signal: ReturnSignal | None = Field(
            None, description="raw: the reward; signed: 1 for a pass, negative_signal for a failure."
        )
        negative_signal: float | None = Field(
            None, le=0, description="Signal of a failed trajectory (-0.05). -1 is TOPR's; small policies may collapse."
        )
        normalization: Literal["token", "trajectory", "trajectory_mean"] | None = Field(
            None, description="The mean that the loss is: of tokens, of trajectories' sums, or of their means."
        )
        clip_low: float | None = Field(None, gt=0, description="Ratios are clipped below 1 - clip_low.")
        clip_high: float | None = Field(None, gt=0, description="Ratios are clipped above 1 + clip_high.")
        tis_cap: float | None = Field(
            None, gt=0, description="Largest weight of truncated importance sampling (Eqs. 4 to 6: 1)."
        )
        mismatch_threshold: float | None = Field(
            None, gt=0, description="H: tokens with a larger trainer/engine ratio are masked (Eq. 6; 2)."
        )
        max_tokens: int | None = Field(
            None, gt=0, description="Dr. GRPO's constant: the sum over a trajectory's tokens is divided by it (1024)."
        )
        old_logprobs: Literal["recompute", "engine"] | None = Field(
            None,
            description="Where pi_old comes from: recomputed by the trainer with the weights that sampled (the default), or "
            "the engine's own numbers.",
        )

        @model_validator(mode="after")
        def _no_idle_settings(self) -> PolicyGradient.Config:
            rule = RULES[self.variant]
            given = {name for name in self.model_fields_set if getattr(self, name) is not None}
            idle = sorted(given - rule.open - {"variant", "group_size", "kl_coef"})
            if idle:
                raise ValueError(
                    f"{', '.join(idle)} cannot be set with the variant '{self.variant}', which takes "
                    f"{', '.join(sorted(rule.open))}; leave it out or choose another variant"
                )
            s = self.settings()
            if "negative_signal" in given and s.return_signal != "signed":
                raise ValueError(f"negative_signal does nothing with return_signal '{s.return_signal}'; leave it out")
            if s.scale != "none" and s.baseline == "none":
                raise ValueError(
                    f"scale '{s.scale}' divides differences from a baseline; set a baseline, or scale to none"
                )
            if s.scale == "group_std" and s.baseline not in GROUP_BASELINES:
                raise ValueError(
                    f"scale 'group_std' needs a baseline of the group ({', '.join(GROUP_BASELINES)}), not '{s.baseline}'"
                )
            if s.baseline in GROUP_BASELINES and self.group_size < 2:
                raise ValueError(f"the baseline '{s.baseline}' needs a group_size of at least 2, not {self.group_size}")
            return self

        def settings(self) -> Settings:
            """The variant's settings with those that were given in their places."""
            rule = RULES[self.variant]
            given = {name: getattr(self, name) for name in rule.open}
            return replace(rule.settings, **{name: value for name, value in given.items() if value is not None})

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.settings = config.settings()
        self.group_size = config.group_size
        self.old_logprobs = self.settings.old_logprobs
        self.reference = config.kl_coef > 0
        self._dropped_groups = 0

    @classmethod
    def needs(cls, config: Any) -> Mapping[str, Collection[str]]:
        """A trainer that keeps a reference policy, where there is a penalty on leaving it."""
        return {"trainer": ["reference"]} if config.kl_coef else {}

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        """See `Algorithm.batch`. Left out: trajectories without a reward to be trusted, groups without spread.

        Those groups still count in the mean that the loss is, where the variant says so.
        """
        s = self.settings
        kept = trusted(trajectories)
        rewards = [reward_of(t) for t in kept]
        if s.return_signal == "signed":
            rewards = [1.0 if t.passed else s.negative_signal for t in kept]
        made = advantages(rewards, groups_of(kept), s.baseline, s.scale)
        self._dropped_groups += made.even_groups
        tokens = [_sampled_tokens(t) for t in kept]
        trained = [i for i in range(len(kept)) if i not in made.even]
        if not any(made.values[i] and tokens[i] for i in trained):
            return None
        counted = [n for i, n in enumerate(tokens) if n and (s.even_groups_count or i not in made.even)]
        # By object, not by trajectory id: two rollouts that share an id are still two.
        value_of = {id(kept[i]): made.values[i] for i in trained}

        def credit(trajectory: Trajectory, chunk: Chunk, position: int, count: int) -> Credit | None:
            value = value_of[id(trajectory)]
            return Credit(value, value > 0) if chunk.sampled else None

        return pack([kept[i] for i in trained], credit, lambda table, count: self._normalizer(counted))

    def _normalizer(self, tokens: Sequence[int]) -> float:
        """Z from the sampled tokens of each trajectory that counts: known before anything is computed."""
        match self.settings.normalization:
            case "token":
                return float(sum(tokens))
            case "constant":
                return float(len(tokens) * self.settings.max_tokens)
            case _:
                return float(len(tokens))

    def loss(self, inputs: LossInput) -> LossOutput:
        """The variant's loss over one micro-batch, in float32 or better."""
        import torch

        from ale_pg.report import loss_sums
        from ale_policy_loss.reference import reference_penalty
        from ale_policy_loss.report import ratio_maxima
        from ale_policy_loss.units import segments_of

        kind = torch.promote_types(inputs.logprobs.dtype, torch.float32)
        logprobs = inputs.logprobs.to(kind)
        old = self._old(inputs)
        old = None if old is None else old.to(kind)
        values = inputs.chunks.returns[inputs.chunk_ids].to(kind)
        trajectories = segments_of("trajectory", inputs.chunk_ids, inputs.chunks)
        shares = self._shares(logprobs, trajectories, inputs.normalizer)
        terms = self._terms(
            logprobs, old, inputs.engine_logprobs.to(kind), values, trajectories, shares, inputs.normalizer
        )
        penalty = reference_penalty(inputs, self.config.kl_coef, shares)
        sums = loss_sums(inputs, logprobs, old, values, trajectories, terms) | penalty.sums
        maxima = {} if terms.ratio is None else ratio_maxima(terms.ratio)
        return LossOutput(terms.loss + penalty.loss, sums, maxima)

    def _shares(self, logprobs: Tensor, trajectories: Tensor, z: float) -> Tensor:
        """What each token counts in the mean that the loss is. [M]"""
        from ale_pg.terms import even_shares, trajectory_shares

        if self.settings.normalization == "trajectory_mean":
            return trajectory_shares(logprobs, trajectories, z)
        return even_shares(logprobs, z)

    def _old(self, inputs: LossInput) -> Tensor | None:
        """log pi_old of the tokens; None where the variant has no ratio."""
        source = self.settings.old_logprobs
        if source == "none":
            return None
        old: Tensor | None = inputs.old_logprobs
        if old is None and source == "recompute":
            # The engine's in silence would hide its mismatch, and the current ones would make every ratio 1.
            raise PluginError(
                f"The algorithm 'pg' (variant '{self.config.variant}') has old_logprobs 'recompute', but the batch has none: "
                "fill TrainBatch.old_logprobs from the trainer before the first update, or set old_logprobs to 'engine'."
            )
        return inputs.engine_logprobs if old is None else old

    def _terms(
        self,
        logprobs: Tensor,
        old: Tensor | None,
        engine: Tensor,
        values: Tensor,
        trajectories: Tensor,
        shares: Tensor,
        z: float,
    ) -> Terms:
        from ale_pg.cispo import cispo
        from ale_pg.grpo import dapo, dr_grpo, grpo
        from ale_pg.gspo import gspo
        from ale_pg.ppo import ppo_clip
        from ale_pg.reinforce import reinforce, tis
        from ale_pg.topr import topr, topr_token_mask

        s = self.settings
        if old is None:
            return reinforce(logprobs, values, shares)
        match self.config.variant:
            case "tis":
                return tis(logprobs, old, values, trajectories, shares, s.tis_cap)
            case "topr":
                return topr(logprobs, old, values, trajectories, shares, s.tis_cap)
            case "topr_token_mask":
                return topr_token_mask(
                    logprobs, old, engine, values, trajectories, shares, s.tis_cap, s.mismatch_threshold
                )
            case "grpo":
                return grpo(logprobs, old, values, trajectories, z, s.clip_low, s.clip_high)
            case "dr_grpo":
                return dr_grpo(logprobs, old, values, z, s.clip_low, s.clip_high)
            case "dapo":
                return dapo(logprobs, old, values, z, s.clip_low, s.clip_high)
            case "gspo":
                return gspo(logprobs, old, values, trajectories, z, s.clip_low, s.clip_high)
            case "cispo":
                return cispo(logprobs, old, values, shares, s.clip_low, s.clip_high)
            case _:
                return ppo_clip(logprobs, old, values, shares, s.clip_low, s.clip_high)

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Means over the tokens with loss, unless it says otherwise; `docs/metrics.md` has them in one table.

        `entropy` in nats; `advantage`, `advantage_std` over trajectories; `positive` and `negative`: share of tokens with an
        advantage above and below 0, `positive_trajectories` and `negative_trajectories` of the trajectories; `kl_ref`:
        estimate of KL(pi, reference). Where the variant has a ratio: `ratio`, `ratio_std`, `ratio_max` of pi/pi_old in its
        unit before the step; `effective_samples`: (sum of ratios)^2 / (tokens x sum of squares), 1 where all are alike;
        `clipped_low`, `clipped_high`: share of tokens whose gradient a bound took or cut; `kl_old`: estimate of KL(pi_old, pi);
        `engine_gap`: |log pi_old - log mu|; `masked`: share of tokens above H. `dropped_groups` counts the groups without
        spread in all batches made since this was last asked, where there were any.
        """
        from ale_pg.report import loss_metrics

        out = loss_metrics(totals)
        if self._dropped_groups:
            out["dropped_groups"] = float(self._dropped_groups)
            self._dropped_groups = 0
        return out


def _sampled_tokens(trajectory: Trajectory) -> int:
    return sum(len(chunk) for chunk in trajectory.turns if chunk.sampled)
