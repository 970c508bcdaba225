"""Staying near a reference policy: `coef * KL(pi || ref)`, estimated on the tokens that the policy sampled.

The estimator is Schulman's third (k3), `exp(d) - 1 - d` with `d = log ref - log pi` of the sampled token: never negative,
unbiased on samples of pi, of low variance. As in GRPO (arXiv:2402.03300, Eq. 4) the gradient is that of the estimator
itself, `(1 - ref / pi) grad log pi`, without an importance weight. Its expectation is the gradient of KL(ref || pi), which
near the reference is that of KL(pi || ref) to first order; both vanish at pi = ref alone.

Shapes: M tokens with loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ale.errors import PluginError
from ale.specs.trainer import LossInput
from ale_policy_loss.ratios import gap


@dataclass(frozen=True, slots=True)
class Penalty:
    """`loss` is a scalar that carries the gradient; `sums` are detached and add up over micro-batches and ranks."""

    loss: Tensor
    sums: dict[str, Tensor]


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The estimate for each token; `d` is cut off at 20 in either direction, without gradient beyond. [M]"""
    d = gap(reference, logprobs)
    return torch.expm1(d) - d


def reference_penalty(inputs: LossInput, coef: float, shares: Tensor | float | None = None) -> Penalty:
    """`coef * sum_t s_t k3_t` over the tokens that the policy sampled; nothing where `coef` is 0.

    `shares` [M] is what a token counts in the mean that the loss is, by default 1 / Z. Tokens that a mask leaves out of
    the policy gradient are held near the reference too; those that an expert or a demonstrator wrote are not.
    Raises `PluginError` where the batch has no log-probabilities of a reference.
    """
    logprobs = inputs.logprobs
    if not coef:
        return Penalty(logprobs.new_zeros(()), {})
    if inputs.reference_logprobs is None:
        raise PluginError(
            f"kl_coef is {coef:g}, but the batch has no reference_logprobs: call TrainerBackend.keep_reference before the "
            "first update and fill TrainBatch.reference_logprobs, or set kl_coef to 0."
        )
    kind = torch.promote_types(logprobs.dtype, torch.float32)
    sampled = inputs.chunks.sampled[inputs.chunk_ids].to(kind)
    each = k3(logprobs.to(kind), inputs.reference_logprobs.to(kind)) * sampled
    loss = coef * (each * (1 / inputs.normalizer if shares is None else shares)).sum()
    return Penalty(loss, {"kl_ref_sum": each.detach().double().sum(), "kl_ref_tokens": sampled.sum()})
