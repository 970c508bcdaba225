"""Samples tokens for a batch of rows, each with its own settings and random numbers.

A row's token depends on its logits and on one uniform number from its own seeded stream (inverse transform over the
cumulative probabilities), so that it does not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ale.specs.engine import Sampling

BELOW_ONE = 1.0 - 2.0**-23
"""The largest draw. Multiplied with a float32 sum it stays below that sum, so a draw never selects a token of
probability 0."""


def uniform_stream(seed: int, n: int) -> list[float]:
    """`n` numbers in [0, 1) that depend on the seed alone."""
    stream: list[float] = np.random.Generator(np.random.Philox(key=seed % (1 << 64))).random(n).tolist()
    return stream


def normal_noise(streams: Sequence[tuple[int, int]], vocab: int) -> Tensor:
    """Standard normal numbers [n, vocab] float32; a row depends on its (seed, number of the token) alone."""
    keys = [seed % (1 << 64) | (number + 1) << 64 for seed, number in streams]
    rows = [np.random.Generator(np.random.Philox(key=key)).standard_normal(vocab, dtype=np.float32) for key in keys]
    return torch.from_numpy(np.stack(rows))


def is_plain(sampling: Sampling) -> bool:
    """Return whether the settings sample from the model's own distribution."""
    return sampling.temperature == 1.0 and sampling.top_k == 0 and sampling.top_p >= 1.0


def sample(logits: Tensor, uniforms: Sequence[float], settings: Sequence[Sampling] | None) -> tuple[Tensor, Tensor]:
    """Sample one token per row. logits [n, vocab] float32 -> (tokens [n] int64, logprobs [n] at temperature 1, no cut).

    `settings` is None if every row samples from the model's own distribution, which is faster.
    """
    draws = torch.tensor(uniforms, device=logits.device, dtype=logits.dtype)[:, None].clamp_(max=BELOW_ONE)
    if settings is None:
        probs = torch.softmax(logits, dim=-1)
        tokens = _inverse_transform(probs, draws)
        return tokens.squeeze(-1), probs.gather(-1, tokens).log().squeeze(-1)
    temperatures = [s.temperature for s in settings]
    scale = torch.tensor([t if t > 0 else 1.0 for t in temperatures], device=logits.device)
    probs = torch.softmax(logits / scale[:, None], dim=-1)
    if any(s.top_k or s.top_p < 1.0 for s in settings):
        probs = _apply_top_k_and_top_p(probs, settings)
    tokens = _inverse_transform(probs, draws)
    greedy = torch.tensor([t == 0 for t in temperatures], device=logits.device)
    tokens = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), tokens)
    return tokens.squeeze(-1), torch.log_softmax(logits, dim=-1).gather(-1, tokens).squeeze(-1)


def _inverse_transform(probs: Tensor, draws: Tensor) -> Tensor:
    """Return the first token at which the cumulative probability exceeds the draw, [n, 1]; the last token in a row of
    NaN, whose log-probability tells the caller."""
    cumulated = probs.cumsum(dim=-1)
    return torch.searchsorted(cumulated, draws * cumulated[:, -1:], right=True).clamp_(max=probs.shape[-1] - 1)


def _apply_top_k_and_top_p(probs: Tensor, settings: Sequence[Sampling]) -> Tensor:
    """Set to 0 the probabilities that top-k and top-p leave out; the most likely token always stays."""
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)[None, :]
    top_k = torch.tensor([s.top_k or probs.shape[-1] for s in settings], device=probs.device)[:, None]
    top_p = torch.tensor([s.top_p for s in settings], device=probs.device)[:, None]
    before = ordered.cumsum(dim=-1) - ordered
    keep = ((rank < top_k) & ((before < top_p) | (top_p >= 1.0))) | (rank == 0)
    return torch.zeros_like(probs).scatter(-1, index, ordered * keep)
