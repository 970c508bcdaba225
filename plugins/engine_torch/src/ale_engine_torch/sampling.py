"""Sampling for a batch of rows, each with settings and random numbers of its own.

A row's token depends on its logits and on one uniform number from its own seeded stream (inverse transform over the
cumulated probabilities), so that it does not depend on what else is in the batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ale.specs.engine import Sampling


def uniform_stream(seed: int, n: int) -> list[float]:
    """`n` numbers in [0, 1) that depend on the seed alone."""
    return [float(u) for u in np.random.Generator(np.random.Philox(key=seed % (1 << 64))).random(n)]


def sample(logits: Tensor, uniforms: list[float], settings: list[Sampling]) -> tuple[Tensor, Tensor]:
    """One token a row. logits [n, vocab] float32 -> (tokens [n] int64, logprobs [n] at temperature 1, uncut)."""
    logprobs = torch.log_softmax(logits, dim=-1)
    temperatures = [s.temperature for s in settings]
    if all(t == 1.0 for t in temperatures):
        probs = logprobs.exp()
    else:
        scale = torch.tensor([t if t > 0 else 1.0 for t in temperatures], device=logits.device)
        probs = torch.softmax(logits / scale[:, None], dim=-1)
    if any(s.top_k or s.top_p < 1.0 for s in settings):
        probs = _cut(probs, settings)
    cumulated = probs.cumsum(dim=-1)
    draws = torch.tensor(uniforms, device=logits.device, dtype=logits.dtype)[:, None] * cumulated[:, -1:]
    tokens = (cumulated <= draws).sum(dim=-1)
    # Rounding may put a draw on the last edge, behind the last token that has any probability.
    last = probs.shape[-1] - 1 - (probs.flip(-1) > 0).to(torch.int8).argmax(dim=-1)
    tokens = torch.minimum(tokens, last)
    if any(t == 0 for t in temperatures):
        greedy = torch.tensor([t == 0 for t in temperatures], device=logits.device)
        tokens = torch.where(greedy, logits.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


def _cut(probs: Tensor, settings: list[Sampling]) -> Tensor:
    """Zero what top-k and top-p leave out; the most likely token always stays."""
    ordered, index = probs.sort(dim=-1, descending=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)[None, :]
    top_k = torch.tensor([s.top_k or probs.shape[-1] for s in settings], device=probs.device)[:, None]
    top_p = torch.tensor([s.top_p for s in settings], device=probs.device)[:, None]
    before = ordered.cumsum(dim=-1) - ordered
    keep = ((rank < top_k) & (before < top_p)) | (rank == 0)
    return torch.zeros_like(probs).scatter(-1, index, ordered * keep)
