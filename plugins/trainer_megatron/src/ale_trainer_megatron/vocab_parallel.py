"""Log-probabilities and entropies of given tokens when each rank has the output layer of a part of the vocabulary.

As in the trainer `torch`, logits exist for some positions at a time, and the backward pass computes them again. Each
rank knows of the others' logits only their largest and their sums of exponentials, so that no table crosses ranks:
`log p = z - lse`, with `lse` over all ranks, and `H = lse - sum(p z)`.

Shapes: N positions, H width, V rows of the output layer on this rank. All ranks get the same results, and each the
gradient of its own part; that with respect to `hidden` is this rank's part of a sum over ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    group: Any,
    first: int,
    vocabulary: int,
    chunk_tokens: int | None,
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies (nats) of `targets` [N] under the logits `hidden @ weight.T`.

    hidden [N, H], weight [V, H], whose rows are the tokens from `first` on; those from `vocabulary` on are padding.
    Both results are [N], float32 or the type of `hidden` where that is wider.
    """
    found: tuple[Tensor, Tensor] = _VocabParallel.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, group, first, vocabulary, chunk_tokens
    )
    return found


class _VocabParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        group: Any,
        first: int,
        vocabulary: int,
        chunk: int | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.real = min(max(vocabulary - first, 0), len(weight))
        ctx.spans = _spans(len(targets), chunk)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        target_logits, lse, mean = (hidden.new_zeros(len(targets), dtype=wide) for _ in range(3))
        at, mine = _locate(targets, first, len(weight))
        for part in ctx.spans:
            logits = _logits(hidden[part], weight, ctx.real, wide)
            top = logits.amax(-1)
            dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
            powers = (logits - top[:, None]).exp()
            # 0 x -inf is nan: an impossible token adds nothing to a mean.
            sums = torch.stack([powers.sum(-1), (powers * logits.clamp(min=torch.finfo(wide).min)).sum(-1)])
            picked = logits.gather(-1, at[part, None])[:, 0].where(mine[part], torch.zeros((), dtype=wide))
            sums = torch.cat([sums, picked[None]])
            dist.all_reduce(sums, group=group)
            lse[part] = top + sums[0].log()
            mean[part] = sums[1] / sums[0]
            target_logits[part] = sums[2]
        entropies = lse - mean
        ctx.save_for_backward(hidden, weight, targets, lse, entropies)
        ctx.first = first
        ctx.set_materialize_grads(False)
        return target_logits - lse, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, lse, entropies = ctx.saved_tensors
        at, mine = _locate(targets, ctx.first, len(weight))
        grad_hidden = torch.zeros_like(hidden)
        # Chunks are summed in float32: in bfloat16 every further chunk would lose more to rounding.
        grad_weight = torch.zeros_like(weight, dtype=lse.dtype)
        for part in ctx.spans:
            logits = _logits(hidden[part], weight, ctx.real, lse.dtype).sub_(lse[part, None])
            table = logits.exp()
            factor = torch.zeros_like(table) if grad is None else -grad[part, None].expand_as(table)
            if grad_entropy is not None:
                # Where p is 0 any finite logarithm will do: it is multiplied by 0.
                more = logits.clamp_(min=-1e4).add_(entropies[part, None]).mul_(grad_entropy[part, None])
                factor = factor - more
            slopes = table * factor
            if grad is not None:
                slopes.scatter_add_(-1, at[part, None], torch.where(mine[part], grad[part], 0.0)[:, None])
            slopes = slopes.to(hidden.dtype)
            grad_hidden[part] = slopes @ weight
            grad_weight += slopes.t() @ hidden[part]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, real: int, dtype: torch.dtype) -> Tensor:
    """Compute the logits [n, V] of some positions; -inf for padding."""
    logits = (hidden @ weight.t()).to(dtype)
    logits[:, real:] = -torch.inf
    return logits


def _locate(targets: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return each target's row on this rank, 0 if it is another's, and whether it is this rank's."""
    at = targets - first
    mine = (at >= 0) & (at < rows)
    return at.where(mine, torch.zeros_like(at)), mine


def _spans(count: int, chunk: int | None) -> list[slice]:
    step = max(1, min(count, chunk or count))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
