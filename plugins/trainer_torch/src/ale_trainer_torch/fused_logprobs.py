"""Log-probabilities and entropies of given tokens, computed in chunks of positions: the logits never exist as a whole.

The output layer, the softmax and the gather are done for some positions at a time, and the backward pass computes the
logits of a chunk again instead of keeping them: memory is that of a few [chunk, V] tables, whatever the number of
positions. Softmax and sums are in float32 at least. Gradients, also those of entropies, are exact, chunks or not.

Shapes: N positions, H width, V vocabulary. A token whose logit is -inf has the log-probability
-inf; vocabulary entries at -inf add nothing to the entropy and get no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAST_LOG = -1e4
"""Below the logarithm of any number above 0."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    chunk_tokens: int | None = None,
    scale: float = 1.0,
    cap: float | None = None,
    temperature: float = 1.0,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute log-probabilities and, if `entropy`, entropies (nats) of `targets` [N] under the logits
    `cap * tanh(scale * (hidden @ weight.T + bias) / cap) / temperature`, without the tanh where `cap` is None.

    hidden [N, H], weight [V, H], bias [V]. `chunk_tokens`: positions whose logits are held at a time, None for all.
    Both results are [N], float32 or the type of `hidden` where that is wider. Gradients reach hidden, weight and bias.
    """
    of = _LogitScale(scale, cap, temperature)
    logprobs, entropies = _FromHidden.apply(hidden, weight, bias, targets, chunk_tokens, of, entropy)  # type: ignore[no-untyped-call]
    return logprobs, entropies


def logprobs_from_logits(
    logits: Tensor,
    targets: Tensor,
    rows: Tensor | None = None,
    *,
    chunk_tokens: int | None = None,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute the same from existing logits [N, V]; of that size, the backward pass makes only their gradient.

    `rows` [M] (distinct) says which rows of the logits `targets` [M] belong to; without it, all in order.
    """
    logprobs, entropies = _FromLogits.apply(logits, targets, rows, chunk_tokens, entropy)  # type: ignore[no-untyped-call]
    return logprobs, entropies


@dataclass(frozen=True, slots=True)
class _LogitScale:
    """What is done to the outputs of the output layer, and to gradients on their way back."""

    scale: float
    cap: float | None
    temperature: float

    def apply(self, logits: Tensor) -> Tensor:
        if self.cap is None and self.scale == self.temperature:
            return logits
        logits = logits.to(_wide(logits)).mul_(self.scale)
        if self.cap is not None:
            logits.div_(self.cap).tanh_().mul_(self.cap)
        return logits.div_(self.temperature)

    def take_back(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Turn the gradient with respect to `logits` into that with respect to the layer's outputs, in place; `logits`
        are used up."""
        if self.cap is not None:
            gradient.mul_(logits.mul_(self.temperature / self.cap).square_().neg_().add_(1))
        if self.scale != self.temperature:
            gradient.mul_(self.scale / self.temperature)
        return gradient


class _FromHidden(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        chunk: int | None,
        of: _LogitScale,
        entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        desk = _ChunkBuffers(hidden, len(weight), chunk, len(targets))
        logprobs, entropies = desk.measure(
            lambda part: of.apply(desk.head(hidden[part], weight, bias)), targets, entropy
        )
        ctx.save_for_backward(hidden, weight, bias, targets, entropies)
        ctx.chunk, ctx.of = chunk, of
        ctx.set_materialize_grads(False)  # entropies cost nothing in the backward pass unless a loss uses them
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies = ctx.saved_tensors
        slopes = _Slopes(grad, grad_entropy, entropies)
        for_hidden, for_weight, for_bias, *_rest = ctx.needs_input_grad
        # Chunks are summed in float32: in bfloat16 every further chunk would lose more to rounding.
        wide = _wide(weight)
        grad_hidden = torch.empty_like(hidden) if for_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if for_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if for_bias else None
        desk = _ChunkBuffers(hidden, len(weight), ctx.chunk, len(targets))
        for part in desk.spans:
            logits = ctx.of.apply(desk.head(hidden[part], weight, bias))
            logits_gradient = ctx.of.take_back(desk.logits_gradient(logits, targets[part], slopes.of(part)), logits)
            if grad_bias is not None:
                grad_bias += logits_gradient.sum(0)
            logits_gradient = logits_gradient.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(logits_gradient, weight, out=grad_hidden[part])
            if grad_weight is not None and grad_weight.dtype == logits_gradient.dtype:
                grad_weight.addmm_(logits_gradient.t(), hidden[part])
            elif grad_weight is not None:
                grad_weight += logits_gradient.t() @ hidden[part]
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 4,
        )


class _FromLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, rows: Tensor | None, chunk: int | None, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        desk = _ChunkBuffers(logits, logits.shape[-1], chunk, len(targets))
        logprobs, entropies = desk.measure(lambda part: logits[part if rows is None else rows[part]], targets, entropy)
        ctx.save_for_backward(logits, targets, rows, entropies)
        ctx.chunk = chunk
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, targets, rows, entropies = ctx.saved_tensors
        slopes = _Slopes(grad, grad_entropy, entropies)
        out = torch.zeros_like(logits)
        desk = _ChunkBuffers(logits, logits.shape[-1], ctx.chunk, len(targets))
        for part in desk.spans:
            place = part if rows is None else rows[part]
            out[place] = desk.logits_gradient(logits[place], targets[part], slopes.of(part)).to(logits.dtype)
        return out, None, None, None, None


def _wide(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)


@dataclass(frozen=True, slots=True)
class _Slopes:
    """The gradients of the loss with respect to log-probabilities and entropies [N], and the entropies themselves; None
    for what it does not depend on."""

    logprobs: Tensor | None
    entropy: Tensor | None
    entropies: Tensor | None

    def of(self, part: slice) -> _Slopes:
        return _Slopes(*(None if x is None else x[part] for x in (self.logprobs, self.entropy, self.entropies)))


class _ChunkBuffers:
    """Reusable memory for a chunk's logits and one more table of that size; allocating it for each chunk would cost a
    CPU as much time as the computation."""

    def __init__(self, like: Tensor, vocabulary: int, chunk: int | None, count: int) -> None:
        step = max(1, min(count, chunk or count))
        self.spans = [slice(start, min(start + step, count)) for start in range(0, count, step)]
        self._logits = like.new_empty(0)
        self._table = like.new_empty((step, vocabulary), dtype=_wide(like))

    def head(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the output layer's outputs [n, V] of some positions."""
        if not self._logits.numel():
            self._logits = hidden.new_empty(self._table.shape)
        logits = torch.mm(hidden, weight.t(), out=self._logits[: len(hidden)])
        if bias is not None:
            logits += bias
        return logits

    def measure(
        self, logits_of: Callable[[slice], Tensor], targets: Tensor, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute log-probabilities of `targets` [N] and, if asked for, entropies; `logits_of` a span are [n, V]."""
        logprobs = self._table.new_empty(len(targets))
        entropies = torch.empty_like(logprobs) if entropy else None
        for part in self.spans:
            logits = logits_of(part)
            table = torch.log_softmax(logits, dim=-1, dtype=self._table.dtype, out=self._table[: len(logits)])
            logprobs[part] = table.gather(-1, targets[part, None]).squeeze(-1)
            if entropies is not None:
                # 0 x -inf is nan, but 0 x the lowest number is 0, which is what an impossible token adds.
                entropies[part] = -table.exp().mul_(table.clamp_(min=torch.finfo(table.dtype).min)).sum(-1)
        return logprobs, entropies

    def logits_gradient(self, logits: Tensor, targets: Tensor, slopes: _Slopes) -> Tensor:
        """Compute the gradient of `sum(g * logprobs) + sum(e * entropies)` with respect to the logits [n, V]:
        `g (1[j = target] - p_j) - e p_j (log p_j + H)`."""
        g = slopes.logprobs
        table = torch.softmax(logits, dim=-1, dtype=self._table.dtype, out=self._table[: len(logits)])
        if slopes.entropy is not None and slopes.entropies is not None:
            # Where p is 0 any finite logarithm will do: it is multiplied by 0.
            factor = table.log().clamp_(min=LEAST_LOG).add_(slopes.entropies[:, None]).mul_(slopes.entropy[:, None])
            table.mul_(factor.neg_() if g is None else factor.neg_().sub_(g[:, None]))
        else:
            table.mul_(0.0 if g is None else -g[:, None])
        return table if g is None else table.scatter_add_(-1, targets[:, None], g[:, None])
