"""The entropy bonus: `- coef * H(pi)` in the loss, a mean over the tokens that the policy sampled (Mnih et al.,
arXiv:1602.01783, section 4). It keeps a policy from becoming certain too early.

Shapes: M tokens with loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ale.errors import PluginError
from ale.specs.trainer import LossInput
from ale_torch.losses.kl_penalty import reference_normalizer


def entropy_bonus(inputs: LossInput, coef: float, shares: Tensor | None = None) -> Tensor:
    """Compute `- coef * sum_t s_t H_t`, a scalar with gradient; 0 if `coef` is 0.

    `shares` [M] are the weights `s_t`, by default 1 / Z with the batch's `reference_normalizer`: as the KL penalty, the
    bonus acts on masked tokens too, and not on those of an expert or a demonstrator. Raises `PluginError` where the
    trainer gives the entropy no gradient.
    """
    logprobs: Tensor = inputs.logprobs
    entropy: Tensor = inputs.entropy
    if not coef:
        return logprobs.new_zeros(())
    if logprobs.requires_grad and not entropy.requires_grad:
        raise PluginError(
            f"entropy_coef is {coef:g}, but the trainer's LossInput.entropy has no gradient, as it must where the "
            "loss's `entropy_gradient` is true: set entropy_coef to 0, or take another trainer."
        )
    kind = torch.promote_types(logprobs.dtype, torch.float32)
    each = entropy.to(kind) * inputs.chunks.sampled[inputs.chunk_ids].to(kind)
    bonus: Tensor = coef * (each * (1 / reference_normalizer(inputs) if shares is None else shares)).sum()
    return -bonus
