"""The loss of IPA that a trainer calls: Eq. 9, Eq. 10 for imitated chunks, the KL penalty and the entropy bonus.

The object holds only settings and imports torch when it is called, so it can be pickled into another process. The
equations are pure functions in `policy_loss.py`, `imitation.py` and `ale_torch.losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ale.errors import PluginError
from ale.specs.trainer import Loss, LossInput, LossOutput, TrainBatch
from ale_ipa.imitation import imitation_loss, select
from ale_torch.losses import Level


@dataclass(frozen=True, slots=True)
class ChunkLoss(Loss):
    """Computes Eq. 9 over one micro-batch, or Eq. 10 if it holds imitated chunks, with KL penalty and entropy bonus."""

    ratio_level: Level
    mask_level: Level
    mismatch_threshold: float
    mismatch_lower: float | None
    old_logprobs: Literal["recompute", "engine"]
    lambda_rl: float
    lambda_il: float
    kl_coef: float
    normalization: Level
    entropy_coef: float = 0.0

    @property
    def entropy_gradient(self) -> bool:
        return self.entropy_coef != 0

    def __call__(self, inputs: LossInput) -> LossOutput:
        from ale_torch.losses.entropy import entropy_bonus
        from ale_torch.losses.kl_penalty import reference_penalty

        sampled = inputs.chunks.sampled[inputs.chunk_ids]
        penalty = reference_penalty(inputs, self.kl_coef)
        total, sums = penalty.loss + entropy_bonus(inputs, self.entropy_coef), penalty.sums
        maxima: Mapping[str, Any] = {}
        if bool(sampled.any()):
            out = self._policy_loss(inputs if bool(sampled.all()) else select(inputs, sampled))
            total, sums, maxima = total + self.lambda_rl * out.loss, {**sums, **out.sums}, out.maxima
        if not bool(sampled.all()):
            imitated, more = imitation_loss(select(inputs, ~sampled))
            total, sums = total + self.lambda_il * imitated, {**sums, **more}
        return LossOutput(total, sums, maxima)

    def normalize(self, batch: TrainBatch) -> TrainBatch:
        """Leave masked tokens out of Z. The KL penalty is a mean over all tokens that the policy sampled, because it
        acts on all of them."""
        from ale_torch.losses.token_masks import count_units, sampled_tokens, tokens_with_loss, unmasked_tokens

        kept = unmasked_tokens(batch, self.mask_level, self.mismatch_threshold, self.mismatch_lower)
        packed, left, held = (
            count_units(batch, tokens, self.normalization)
            for tokens in (tokens_with_loss(batch), kept, sampled_tokens(batch))
        )
        return replace(
            batch,
            normalizer=batch.normalizer - (packed - left) or 1.0,
            reference_normalizer=float(held) or 1.0,
        )

    def _policy_loss(self, inputs: LossInput) -> LossOutput:
        """Compute Eq. 9 over the tokens that the policy sampled."""
        import torch

        from ale_ipa.metrics import loss_sums
        from ale_ipa.policy_loss import policy_loss
        from ale_torch.losses.metrics import ratio_maxima
        from ale_torch.losses.segments import segments_of

        ids = inputs.chunk_ids
        old = inputs.old_logprobs
        if old is None:
            # Using the engine's log-probabilities here would silently turn the mismatch mask off.
            if self.old_logprobs == "recompute":
                raise PluginError(
                    "The algorithm 'ipa' has old_logprobs 'recompute', but the batch has none: fill "
                    "TrainBatch.old_logprobs from the trainer before the first update, or set old_logprobs to 'engine'."
                )
            old = inputs.engine_logprobs
        positive = inputs.chunks.positive[ids]
        terms = policy_loss(
            logprobs=inputs.logprobs,
            old=old,
            engine=inputs.engine_logprobs,
            returns=inputs.chunks.returns[ids],
            positive=positive,
            ratio_segments=segments_of(self.ratio_level, ids, inputs.chunks),
            mask_segments=segments_of(self.mask_level, ids, inputs.chunks),
            threshold=self.mismatch_threshold,
            lower=self.mismatch_lower,
            normalizer=inputs.normalizer,
        )
        sums = loss_sums(inputs, torch.as_tensor(old), positive, terms)
        return LossOutput(terms.loss, sums, ratio_maxima(terms.ratio))

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return means over the tokens with loss, unless stated otherwise; `docs/metrics.md` has them in one table.

        `entropy` is in nats. `ratio`, `ratio_std`, `ratio_max` are of pi/pi_old in its unit before the step.
        `effective_samples` is (sum of ratios)^2 / (tokens x sum of squares); it is 1 if all ratios are equal. `kl_old`
        estimates KL(pi_old, pi), and `kl_ref` KL(pi, reference).
        `positive` and `negative` are shares of the tokens, `positive_trajectories` and `negative_trajectories` of the
        trajectories, `masked` of the tokens, `masked_chunks` of the chunks (masked in part or whole), `clipped` of the
        negative tokens (ratio above 1). All of these count only what the policy sampled. `il_tokens` is the number of
        imitated tokens, `il_loss` their mean negative log-likelihood (nats)."""
        from ale_ipa.metrics import loss_metrics

        return loss_metrics(totals)
