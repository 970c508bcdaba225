"""The loss of PPO with a value head: clipped surrogate, clipped value error, and the usual extras.

    L = - mean_t min(r_t A_t, clip(r_t) A_t) + vf_coef mean_t max((V - R)^2, (clip(V, V_old +- vf_clip) - R)^2) / 2

`A`, `R` (the targets) and `V_old` are columns of the batch, made before the first update of a step (`algorithm.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ale.errors import PluginError
from ale.specs.trainer import Loss, LossInput, LossOutput, TrainBatch
from ale_torch.losses import Estimator
from ale_torch.losses.settings import Correction

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = ("values", "advantages", "targets")


@dataclass(frozen=True, slots=True)
class PPOLoss(Loss):
    """Computes the loss of one micro-batch, in float32 or better: clipped surrogate, value error, penalty and bonus."""

    clip_low: float
    clip_high: float
    dual_clip: float | None
    vf_coef: float
    vf_clip: float | None
    entropy_coef: float = 0.0
    kl_coef: float = 0.0
    kl_estimator: Estimator = "k3"
    correction: Correction | None = None
    use_engine_logprobs: bool = False

    @property
    def entropy_gradient(self) -> bool:
        return self.entropy_coef != 0

    def __call__(self, inputs: LossInput) -> LossOutput:
        """Compute the loss. Raises `PluginError` where the trainer gave no values, or the run no columns."""
        import torch

        from ale_torch.losses.entropy import entropy_bonus
        from ale_torch.losses.kl_penalty import reference_normalizer, reference_penalty
        from ale_torch.losses.metrics import ratio_maxima, ratio_sums, side_sums
        from ale_torch.losses.ppo import ppo_clip
        from ale_torch.losses.rollout_correction import correct
        from ale_torch.losses.segments import segments_of

        missing = sorted(set(COLUMNS) - set(inputs.columns))
        if inputs.values is None or missing:
            raise PluginError(
                f"The algorithm 'ppo' needs LossInput.values and the columns {', '.join(COLUMNS)}; the trainer gave "
                f"{'no values' if inputs.values is None else 'no ' + ', '.join(missing)}. Take a trainer with a value "
                "head (trainer.value_head), and let Algorithm.credit make the columns."
            )
        kind = torch.promote_types(inputs.logprobs.dtype, torch.float32)
        logprobs, values = inputs.logprobs.to(kind), inputs.values.to(kind)
        before, advantages, targets = (inputs.columns[name].to(kind) for name in COLUMNS)
        old = self._old(inputs).to(kind)
        corrected = correct(None if self.use_engine_logprobs else self.correction, old, inputs)
        shares = (corrected.accepted * corrected.weights).to(kind) / inputs.normalizer
        each = torch.arange(len(logprobs), device=logprobs.device)
        terms = ppo_clip(
            logprobs,
            old,
            advantages,
            segments=each,
            shares=shares,
            low=self.clip_low,
            high=self.clip_high,
            dual=self.dual_clip,
        )
        assert terms.ratio is not None
        assert terms.low is not None
        assert terms.high is not None
        errors, bounded = value_errors(values, before, targets, self.vf_clip)
        value_loss = errors.sum() / reference_normalizer(inputs) / 2
        penalty = reference_penalty(inputs, self.kl_coef, estimator=self.kl_estimator)
        loss = terms.loss + self.vf_coef * value_loss + penalty.loss + entropy_bonus(inputs, self.entropy_coef)
        trajectories = segments_of("trajectory", inputs.chunk_ids, inputs.chunks)
        with torch.no_grad():
            wide, seen = targets.double(), values.detach().double()
            sums = {
                "loss_tokens": logprobs.new_tensor(len(logprobs)),
                "entropy_sum": inputs.entropy.detach().double().sum(),
                "value_sum": seen.sum(),
                "target_sum": wide.sum(),
                "target_square_sum": wide.square().sum(),
                "value_error_sum": (wide - seen).sum(),
                "value_error_square_sum": (wide - seen).square().sum(),
                "value_clipped_tokens": bounded.sum(),
                "clipped_low_tokens": terms.low.sum(),
                "clipped_high_tokens": terms.high.sum(),
                **ratio_sums(terms.ratio, logprobs, old),
                **side_sums(advantages > 0, advantages < 0, trajectories),
                **corrected.sums,
                **penalty.sums,
            }
        return LossOutput(loss, sums, ratio_maxima(terms.ratio))

    def normalize(self, batch: TrainBatch) -> TrainBatch:
        """Leave rejected tokens out of the surrogate's mean; the other means count them."""
        from ale_torch.losses.token_masks import accepted_tokens, tokens_with_loss

        packed = float(tokens_with_loss(batch).sum())
        kept = float(accepted_tokens(batch, self.correction).sum())
        return replace(batch, normalizer=kept or 1.0, reference_normalizer=packed or 1.0)

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return means over the tokens with loss; `docs/metrics.md` has them in one table. `explained_variance` is
        `1 - Var(target - V) / Var(target)`: 1 for a perfect critic, 0 or less for one that knows nothing."""
        from ale_torch.losses.metrics import common_metrics, mean_and_deviation

        out = dict(totals)
        if "loss_tokens" not in out:
            return out
        tokens = max(1.0, out["loss_tokens"])
        for name in ("value_clipped", "clipped_low", "clipped_high"):
            out[name] = out.pop(f"{name}_tokens") / tokens
        out["value"] = out.pop("value_sum") / tokens
        out["value_target"], spread = mean_and_deviation(out.pop("target_sum"), out.pop("target_square_sum"), tokens)
        squares = out.pop("value_error_square_sum")
        _, left = mean_and_deviation(out.pop("value_error_sum"), squares, tokens)
        out["value_loss"] = squares / tokens / 2
        if spread > 0:
            out["explained_variance"] = 1 - (left / spread) ** 2
        return common_metrics(out)

    def _old(self, inputs: LossInput) -> Tensor:
        old: Tensor | None = inputs.engine_logprobs if self.use_engine_logprobs else inputs.old_logprobs
        if old is None:
            raise PluginError(
                "The algorithm 'ppo' has old_logprobs 'recompute', but the batch has none: fill "
                "TrainBatch.old_logprobs from the trainer before the first update, or set old_logprobs to 'engine'."
            )
        return old


def value_errors(values: Tensor, before: Tensor, targets: Tensor, bound: float | None) -> tuple[Tensor, Tensor]:
    """Return the squared errors of values [M], at least as large as with values held within `bound` of what they were
    before the update, and where that removed the gradient (bool)."""
    import torch

    errors = (values - targets).square()
    if bound is None:
        return errors, torch.zeros_like(errors, dtype=torch.bool)
    held = (before + (values - before).clamp(-bound, bound) - targets).square()
    return torch.maximum(errors, held), held.detach() > errors.detach()
