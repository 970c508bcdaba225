"""The hybrid objective (Eq. 10): an expert's chunks are imitated up to the crucial one, beside Eq. 9 on what was sampled.

`L = lambda_il L_il + lambda_rl L_rl`, with `L_il = - sum_c* G_c* sum_(t in c*) log pi_t / Z` over the expert's chunks
`1..f` for each group that failed from some start; `G_c* = gamma^(K* - k)` by the expert's own length `K*`, importance
weight 1, no mask. The crucial chunk lies between the start that fails and the next one that succeeds, so that `f` is the
chunk before the latter; where none is known to, it is the chunk that the policy made first. The factor `pi(c*)` of Eq. 10 is the expectation over the expert's samples and no weight. `Z` is that of
Eq. 9 and counts both parts.

The imitated chunks are rows of the batch like any other, and known by `ChunkTable.sampled` being False.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from ale.specs.trainer import LossInput
from ale.trajectory import Trajectory
from ale_ipa.curriculum import Placed
from ale_policy_loss.groups import any_passed, trusted

if TYPE_CHECKING:
    from torch import Tensor

ImitateWhen = Literal["no_positive", "always"]


@dataclass(frozen=True, slots=True)
class Imitation:
    """The first `chunks` chunks of an expert, which the policy did not sample, are to be imitated."""

    expert: Trajectory
    chunks: int


def imitations(trajectories: Sequence[Trajectory], placed: Mapping[str, Placed], when: ImitateWhen) -> list[Imitation]:
    """What is imitated beside these rollouts: for each group on an expert's path, the chunks up to the next start from which
    the policy has succeeded. `no_positive`: of groups alone from whose start none of these rollouts passed."""
    groups = {group: passed for group, passed in any_passed(trusted(trajectories)).items() if group in placed}
    passing = {(placed[group].expert.id, placed[group].start) for group, passed in groups.items() if passed}
    return [
        Imitation(not_sampled(asked.expert), asked.imitated)
        for asked in map(placed.__getitem__, groups)
        if when == "always" or (asked.expert.id, asked.start) not in passing
    ]


def not_sampled(expert: Trajectory) -> Trajectory:
    """The expert with no chunk that counts as the policy's: an own success was sampled by an earlier policy."""
    return replace(
        expert, chunks=tuple(replace(chunk, sampled=False, logprobs=(), versions=()) for chunk in expert.chunks)
    )


def select(inputs: LossInput, keep: Tensor) -> LossInput:
    """The tokens with `keep` [M] bool, as a micro-batch of their own."""
    per_token = {
        f.name: value[keep]
        for f in fields(inputs)
        if f.name not in ("chunks", "normalizer") and (value := getattr(inputs, f.name)) is not None
    }
    return replace(inputs, **per_token)


def imitation_loss(inputs: LossInput) -> tuple[Tensor, dict[str, Tensor]]:
    """`L_il` of Eq. 10 over imitated tokens [M], and sums that add up over micro-batches; in float32 or better."""
    import torch

    from ale_policy_loss.likelihood import weighted_likelihood

    logprobs = inputs.logprobs.to(torch.promote_types(inputs.logprobs.dtype, torch.float32))
    returns = inputs.chunks.returns[inputs.chunk_ids].to(logprobs.dtype)
    said = logprobs.detach()
    nll = -said.masked_fill(~said.isfinite(), 0.0).sum()  # what is impossible now has no gradient to follow either
    sums = {"il_tokens": logprobs.new_tensor(len(logprobs)), "il_nll_sum": nll}
    return weighted_likelihood(logprobs, returns / inputs.normalizer), sums
