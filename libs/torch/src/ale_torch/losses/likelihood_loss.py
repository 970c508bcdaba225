"""The plain policy-gradient loss, for an algorithm that only gives each chunk its credit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ale.specs.trainer import Loss, LossInput, LossOutput


@dataclass(frozen=True)
class LikelihoodLoss(Loss):
    """`- sum_t A_c log pi_t / Z`, where `A_c` is the credit of the token's chunk (`ale_train.batches.Credit.value`) and
    `Z` the batch's normalizer. It is on-policy: nothing corrects for rollouts of an older policy."""

    def __call__(self, inputs: LossInput) -> LossOutput:
        """Import torch and compute the loss."""
        from ale_torch.losses.policy_gradient import weighted_likelihood

        advantages = inputs.chunks.returns[inputs.chunk_ids]
        sums = {"entropy_sum": inputs.entropy.sum(), "loss_tokens": (inputs.chunk_ids >= 0).sum()}
        return LossOutput(weighted_likelihood(inputs.logprobs, advantages) / inputs.normalizer, sums)

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return the totals, with `entropy`: the mean over the tokens with loss, in nats."""
        found = dict(totals)
        found["entropy"] = found.pop("entropy_sum") / found["loss_tokens"]
        return found
