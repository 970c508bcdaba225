"""The hybrid objective (Eq. 10) imitates an expert's chunks up to the crucial fork and adds Eq. 9 on the chunks that
the policy sampled.

`L = lambda_il L_il + lambda_rl L_rl`, with `L_il = - sum_c* G_c* sum_(t in c*) log pi_t / Z` over the expert's chunks
`1..f` for each group that failed from some start. `G_c* = gamma^(K* - k)` uses the expert's own length `K*`; the
importance weight is 1 and there is no mask. The crucial fork lies between the start that fails and the next start that
succeeds, so `f` is the chunk before the latter; if no such start is known, `f` is the chunk that the policy made first.
The factor `pi(c*)` of Eq. 10 is the expectation over the expert's samples, not a weight. `Z` is that of Eq. 9 and
counts both parts. Imitated chunks are rows of the batch like any other; `ChunkTable.sampled` is False for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from ale.specs.trainer import LossInput
from ale.trajectory import Trajectory
from ale_ipa.curriculum import Placed
from ale_torch.losses.groups import any_passed, select_trusted

if TYPE_CHECKING:
    from torch import Tensor

OF_THE_BATCH = ("chunks", "normalizer", "reference_normalizer", "columns")
"""These fields of `LossInput` belong to the whole batch, or are no tensor; the others have one entry per token."""
ImitateWhen = Literal["no_positive", "always"]


@dataclass(frozen=True, slots=True)
class Imitation:
    """The loss imitates the first `chunks` chunks of an expert, which the policy did not sample."""

    expert: Trajectory
    chunks: int


def imitations(trajectories: Sequence[Trajectory], placed: Mapping[str, Placed], when: ImitateWhen) -> list[Imitation]:
    """Return what is imitated in addition to these rollouts: for each group on an expert's path, the chunks up to the
    next start from which the policy has succeeded, as a trajectory of that group. `no_positive` imitates only where
    none of these rollouts from the group's start passed."""
    groups = {group: passed for group, passed in any_passed(select_trusted(trajectories)).items() if group in placed}
    passing = {(placed[group].expert.id, placed[group].start) for group, passed in groups.items() if passed}
    return [
        Imitation(replace(not_sampled(asked.expert), group=group), asked.imitated)
        for group, asked in ((group, placed[group]) for group in groups)
        if when == "always" or (asked.expert.id, asked.start) not in passing
    ]


def not_sampled(expert: Trajectory) -> Trajectory:
    """Return the expert with its chunks marked as not sampled; a success of the policy is of an earlier version."""
    return replace(
        expert, chunks=tuple(replace(chunk, sampled=False, logprobs=(), versions=()) for chunk in expert.chunks)
    )


def select(inputs: LossInput, keep: Tensor) -> LossInput:
    """Return the tokens where `keep` [M] (bool) is True, as a micro-batch."""
    per_token = {
        f.name: value[keep]
        for f in fields(inputs)
        if f.name not in OF_THE_BATCH and (value := getattr(inputs, f.name)) is not None
    }
    return replace(inputs, **per_token, columns={name: column[keep] for name, column in inputs.columns.items()})


def imitation_loss(inputs: LossInput) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `L_il` of Eq. 10 over imitated tokens [M], in float32 or better, and its sums over the micro-batch."""
    import torch

    from ale_torch.losses.policy_gradient import weighted_likelihood

    logprobs = inputs.logprobs.to(torch.promote_types(inputs.logprobs.dtype, torch.float32))
    returns = inputs.chunks.returns[inputs.chunk_ids].to(logprobs.dtype)
    detached = logprobs.detach()
    nll = -detached.masked_fill(~detached.isfinite(), 0.0).sum()  # a token of probability 0 has no gradient either
    sums = {"il_tokens": logprobs.new_tensor(len(logprobs)), "il_nll_sum": nll}
    return weighted_likelihood(logprobs, returns / inputs.normalizer), sums
