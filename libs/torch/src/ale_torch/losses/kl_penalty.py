"""Two penalties that keep the policy near a reference: one in the loss (`reference_penalty`), one in the rewards
(`reward_kl`).

In the loss it is `coef * KL(pi || ref)`, estimated on the policy's sampled tokens.

The estimator is Schulman's third (k3) unless another is asked for, `exp(d) - 1 - d` with `d = log ref - log pi` of the
sampled token: never negative, unbiased on samples of pi, of low variance. As in GRPO (arXiv:2402.03300, Eq. 4) the
gradient is that of the estimator itself, `(1 - ref / pi) grad log pi`, without an importance weight. Its expectation is
the gradient of KL(ref || pi), which near the reference is that of KL(pi || ref) to first order; both vanish at pi = ref
alone.

`exp(d)` is unbounded if the reference gives a token a much higher probability: at `d = 20` one token would have
a gradient of -4.9e8. So from `d = LARGEST_LEAD` on the estimator continues as a straight line with the slope it has
there: no gradient exceeds `e^3 - 1 = 19` times the coefficient, and none vanishes. (ROLL and verl clip the
estimate itself at 10, so a token has no gradient from `d = 2.6` on.) In the other direction the slope is bounded by 1
anyway. Beyond 20 in either direction there is no gradient: one of the two then gives the token probability 0.

In the rewards each token that the policy sampled costs `coef * k(mu, ref)`. PPO of InstructGPT (Ouyang et al., 2022,
arXiv:2203.02155, Eq. 2) and REINFORCE++ take `log pi_old - log ref` (k1) off the reward of each token. Here the first
policy is the engine's, `mu`, which sampled the tokens: the mean of k1 over them is its KL divergence from the
reference, and nothing is to be computed for it.

Shapes: N tokens of a batch, M tokens with loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ale.errors import PluginError
from ale.specs.trainer import LossInput, TrainBatch
from ale_torch.losses import Estimator
from ale_torch.losses.ratios import gap
from ale_torch.losses.token_masks import sampled_tokens

LARGEST_LEAD = 3.0
"""The difference `d` in nats from which the estimator continues as a straight line."""


@dataclass(frozen=True, slots=True)
class Penalty:
    """`loss` is a scalar that carries the gradient; `sums` are detached and add up over micro-batches and ranks."""

    loss: Tensor
    sums: dict[str, Tensor]


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Compute the estimate for each token, a straight line from `LARGEST_LEAD` on; `d` is clamped to +-20, without
    gradient beyond. [M]"""
    d = gap(reference, logprobs)
    slope = math.expm1(LARGEST_LEAD)
    line = slope - LARGEST_LEAD + slope * (d - LARGEST_LEAD)
    return torch.where(d > LARGEST_LEAD, line, torch.expm1(d) - d)


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Compute `log pi - log ref`: unbiased, of high variance. As a loss its gradient is 0 in expectation. [M]"""
    return -gap(reference, logprobs)


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Compute `(log pi - log ref)^2 / 2`: biased, but its gradient is that of KL(pi || ref) in expectation. [M]"""
    return gap(reference, logprobs).square() / 2


def estimate(logprobs: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """Compute the estimate of that name. [M]"""
    return {"k1": k1, "k2": k2, "k3": k3}[estimator](logprobs, reference)


def reference_normalizer(inputs: LossInput) -> float:
    """Return the penalty's divisor, which with a mask differs from the loss's, as the penalty acts on masked tokens
    too."""
    return inputs.normalizer if inputs.reference_normalizer is None else inputs.reference_normalizer


def reference_penalty(
    inputs: LossInput, coef: float, shares: Tensor | float | None = None, estimator: Estimator = "k3"
) -> Penalty:
    """Compute `coef * sum_t s_t k_t` over the tokens that the policy sampled; nothing if `coef` is 0.

    `shares` [M] are the weights `s_t` of the tokens, by default 1 / Z with the batch's `reference_normalizer`. The
    penalty includes tokens that a mask takes out of the policy gradient, but not those of an expert or a demonstrator.
    Raises `PluginError` where the batch has no log-probabilities of a reference.
    """
    logprobs = inputs.logprobs
    if not coef:
        return Penalty(logprobs.new_zeros(()), {})
    if inputs.reference_logprobs is None:
        raise PluginError(
            f"kl_coef is {coef:g}, but the batch has no reference_logprobs: load a reference policy "
            "(TrainerBackend.load) and fill TrainBatch.reference_logprobs, or set kl_coef to 0."
        )
    kind = torch.promote_types(logprobs.dtype, torch.float32)
    sampled = inputs.chunks.sampled[inputs.chunk_ids].to(kind)
    each = estimate(logprobs.to(kind), inputs.reference_logprobs.to(kind), estimator) * sampled
    loss = coef * (each * (1 / reference_normalizer(inputs) if shares is None else shares)).sum()
    return Penalty(loss, {"kl_ref_sum": each.detach().double().sum(), "kl_ref_tokens": sampled.sum()})


def reward_kl(batch: TrainBatch, coef: float, estimator: Estimator = "k1") -> npt.NDArray[np.float64]:
    """Return what is taken off the reward of each token [N], `coef` times the estimate; 0 for tokens without loss, and
    for those that the policy did not sample. Raises `PluginError` where the batch has no reference."""
    out = np.zeros(len(batch.token_ids))
    if not coef:
        return out
    if batch.reference_logprobs is None:
        raise PluginError("A KL penalty in the reward needs TrainBatch.reference_logprobs; load a reference policy.")
    at = sampled_tokens(batch)
    engine, reference = (torch.from_numpy(x[at]).double() for x in (batch.engine_logprobs, batch.reference_logprobs))
    out[at] = coef * estimate(engine, reference, estimator).numpy()
    return out
