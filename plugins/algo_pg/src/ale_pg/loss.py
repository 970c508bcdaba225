"""The loss of a policy gradient that a trainer calls; each variant is a pure function.

The object holds only settings and imports torch when it is called, so it can be pickled into another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ale.errors import PluginError
from ale.specs.trainer import Loss, LossInput, LossOutput, TrainBatch
from ale_pg.variants import Settings, Variant, weigh_trajectory
from ale_torch.losses import Estimator
from ale_torch.losses.settings import Correction

if TYPE_CHECKING:
    from torch import Tensor

    from ale_torch.losses.policy_gradient import Terms


ADVANTAGES = "advantages"
"""The column of a batch whose tokens have advantages of their own; else those of a chunk share its return."""


@dataclass(frozen=True, slots=True)
class PolicyGradientLoss(Loss):
    """Computes the variant's loss over one micro-batch, in float32 or better, with KL penalty and entropy bonus."""

    variant: Variant
    settings: Settings
    kl_coef: float
    correction: Correction | None = None
    entropy_coef: float = 0.0
    kl_estimator: Estimator = "k3"

    @property
    def entropy_gradient(self) -> bool:
        return self.entropy_coef != 0

    def __call__(self, inputs: LossInput) -> LossOutput:
        import torch

        from ale_pg.metrics import loss_sums
        from ale_torch.losses.entropy import entropy_bonus
        from ale_torch.losses.kl_penalty import reference_normalizer, reference_penalty
        from ale_torch.losses.metrics import ratio_maxima
        from ale_torch.losses.rollout_correction import correct
        from ale_torch.losses.segments import segments_of

        kind = torch.promote_types(inputs.logprobs.dtype, torch.float32)
        logprobs = inputs.logprobs.to(kind)
        old = self._old(inputs)
        old = None if old is None else old.to(kind)
        values = inputs.columns.get(ADVANTAGES, inputs.chunks.returns[inputs.chunk_ids]).to(kind)
        trajectories = segments_of("trajectory", inputs.chunk_ids, inputs.chunks)
        mask = None if old is None else self._mask(old, inputs.engine_logprobs.to(kind))
        corrected = correct(self.correction, old, inputs)
        kept = corrected.accepted.to(kind) if mask is None else mask * corrected.accepted
        shares = self._shares(logprobs, trajectories, inputs.normalizer, kept) * corrected.weights.to(kind)
        segments = segments_of(self.settings.level, inputs.chunk_ids, inputs.chunks)
        terms = self._terms(logprobs, old, values, segments=segments, shares=shares, mask=mask, kept=kept)
        of_reference = self._shares(logprobs, trajectories, reference_normalizer(inputs))
        penalty = reference_penalty(inputs, self.kl_coef, of_reference, self.kl_estimator)
        bonus = entropy_bonus(inputs, self.entropy_coef, of_reference)
        sums = (
            loss_sums(inputs, logprobs=logprobs, old=old, advantages=values, trajectories=trajectories, terms=terms)
            | corrected.sums
            | penalty.sums
        )
        maxima = {} if terms.ratio is None else ratio_maxima(terms.ratio)
        return LossOutput(terms.loss + penalty.loss + bonus, sums, maxima)

    def normalize(self, batch: TrainBatch) -> TrainBatch:
        """Leave masked and rejected tokens out of Z; they count in the mean of the KL penalty only."""
        from ale_torch.losses.token_masks import (
            Tokens,
            accepted_tokens,
            count_by_trajectory,
            counted_tokens,
            tokens_with_loss,
            unmasked_tokens,
        )

        s = self.settings

        def count(tokens: Tokens) -> float:
            return sum(weigh_trajectory(s.normalization, s.max_tokens, n) for n in count_by_trajectory(batch, tokens))

        counted, kept = counted_tokens(batch), accepted_tokens(batch, self.correction)
        if self.variant == "topr_token_mask":
            kept &= unmasked_tokens(batch, "token", s.mismatch_threshold)
        packed, masked = count(tokens_with_loss(batch)), count(counted) - count(kept & counted)
        return replace(batch, normalizer=batch.normalizer - masked or 1.0, reference_normalizer=packed or 1.0)

    def _mask(self, old: Tensor, engine: Tensor) -> Tensor | None:
        """Return 0 for masked tokens and 1 for the others [M]; None for a variant without a mask."""
        import torch

        from ale_torch.losses.ratios import mismatch_mask

        if self.variant != "topr_token_mask":
            return None
        each = torch.arange(len(old), device=old.device)
        return mismatch_mask(old, engine, each, self.settings.mismatch_threshold).to(old.dtype)

    def _shares(self, logprobs: Tensor, trajectories: Tensor, z: float, mask: Tensor | None = None) -> Tensor:
        """Return each token's weight in the mean that the loss is [M]; masked tokens have none."""
        from ale_torch.losses.policy_gradient import even_shares, trajectory_shares

        if self.settings.normalization == "trajectory_mean":
            return trajectory_shares(logprobs, trajectories, z, mask)
        return even_shares(logprobs, z) if mask is None else mask / z

    def _old(self, inputs: LossInput) -> Tensor | None:
        """Return log pi_old of the tokens; None if the variant has no ratio."""
        source = self.settings.old_logprobs
        if source == "none":
            return None
        old: Tensor | None = inputs.old_logprobs
        if old is None and source == "recompute":
            # The engine's numbers would silently hide its mismatch; the current ones would make every ratio 1.
            raise PluginError(
                f"The algorithm 'pg' (variant '{self.variant}') has old_logprobs 'recompute', but the batch has none: "
                "fill TrainBatch.old_logprobs from the trainer before the first update, or set old_logprobs to "
                "'engine'."
            )
        return inputs.engine_logprobs if old is None else old

    def _terms(
        self,
        logprobs: Tensor,
        old: Tensor | None,
        values: Tensor,
        segments: Tensor,
        shares: Tensor,
        mask: Tensor | None,
        kept: Tensor,
    ) -> Terms:
        from ale_pg.surrogates import cispo, reinforce, tis, topr
        from ale_torch.losses.ppo import ppo_clip

        s = self.settings
        if old is None or self.variant in ("reinforce", "rloo"):
            return reinforce(logprobs, values, shares)
        match self.variant:
            case "tis":
                return tis(logprobs, old, values, segments=segments, shares=shares, cap=s.tis_cap)
            case "topr" | "topr_token_mask":
                return topr(logprobs, old, values, segments=segments, shares=shares, cap=s.tis_cap, mask=mask)
            case "cispo":
                return cispo(
                    logprobs, old, values, segments=segments, shares=shares, low=s.clip_low, high=s.clip_high, kept=kept
                )
            case _:  # GRPO and its like differ in their advantages, in the unit, and in the mean, which `shares` is
                return ppo_clip(
                    logprobs,
                    old,
                    values,
                    segments=segments,
                    shares=shares,
                    low=s.clip_low,
                    high=s.clip_high,
                    dual=s.dual_clip or None,
                    kept=kept,
                )

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return means over the tokens with loss, unless stated otherwise; `docs/metrics.md` has them in one table.

        `entropy` is in nats. `advantage`, `advantage_std` are over trajectories (the mean over the tokens of each).
        `positive` and `negative` are the shares of tokens with an advantage above and below 0,
        `positive_trajectories` and `negative_trajectories` those of trajectories. `kl_ref` estimates KL(pi,
        reference). If the variant has a ratio: `ratio`, `ratio_std`, `ratio_max` are of pi/pi_old in its unit before
        the step; `effective_samples` is (sum of ratios)^2 / (tokens x sum of squares), 1 if all ratios are equal;
        `clipped_low`, `clipped_high` are the shares of tokens whose gradient a bound removed or reduced; `kl_old`
        estimates KL(pi_old, pi); `masked` is the share of tokens above H. With a correction: `correction`,
        `correction_std` are of the weights of the tokens that are not rejected, `corrected` is the share of these
        whose weight is not their pi_old/mu, `rejected` that of rejected tokens."""
        from ale_pg.metrics import loss_metrics

        return loss_metrics(totals)
