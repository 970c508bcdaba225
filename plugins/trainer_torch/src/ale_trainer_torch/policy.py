"""A Hugging Face causal LM as a policy: log-probabilities and entropies of given tokens.

Only positions before a token with loss go through the output layer: with a large vocabulary the logits are most of
the memory and much of the time. Some models do more between decoder and logits than that layer (scaling, capping);
`selects_positions` finds out by trying, and for those all logits are computed and the needed ones taken.

Padding stands on the right, so no attention mask is needed: in a causal model no token looks at one behind it.
Without a mask the library takes its fast causal path.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ENTROPY_BLOCK = 1 << 24
"""Logits whose probabilities are held at a time while entropies are computed."""


def token_logprobs(model: Any, tokens: Tensor, wanted: Tensor, *, select: bool) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (nats, detached) of the wanted tokens.

    tokens [B, T] int64, right-padded; wanted [B, T] bool, never True in column 0. `select`: what
    `selects_positions` answered. Both results are [wanted.sum()] float32, in row-major order of `wanted`.
    """
    before = torch.zeros_like(wanted)
    before[:, :-1] = wanted[:, 1:]
    logits = _logits_at(model, tokens, before, select).float()
    # logit - logsumexp instead of log_softmax: no second [M, V] tensor is kept for the backward pass.
    log_z = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, tokens[wanted][:, None]).squeeze(-1) - log_z
    return logprobs, _entropy(logits.detach())


@torch.no_grad()
def selects_positions(model: Any) -> bool:
    """Whether the model's logits are its output layer over its decoder's hidden states, and nothing more."""
    device = next(model.parameters()).device
    tokens = torch.arange(8, device=device).reshape(2, 4) % int(model.get_input_embeddings().num_embeddings)
    positions = torch.ones_like(tokens, dtype=torch.bool)
    try:
        selected = _logits_at(model, tokens, positions, select=True)
    except (AttributeError, TypeError):
        return False
    full = _logits_at(model, tokens, positions, select=False)
    return selected.shape == full.shape and torch.allclose(selected, full, rtol=1e-4, atol=1e-4)


def _logits_at(model: Any, tokens: Tensor, positions: Tensor, select: bool) -> Tensor:
    """Logits [M, V] at the positions [B, T] (bool)."""
    if not select:
        return torch.as_tensor(model(input_ids=tokens, use_cache=False).logits[positions])
    hidden = model.get_decoder()(input_ids=tokens, use_cache=False)[0]
    return torch.as_tensor(model.get_output_embeddings()(hidden[positions]))


@torch.no_grad()
def _entropy(logits: Tensor) -> Tensor:
    """Entropy of each row of logits [M, V], a block of rows at a time."""
    rows = max(1, ENTROPY_BLOCK // max(1, logits.shape[-1]))
    blocks = [torch.special.entr(torch.softmax(block, dim=-1)).sum(-1) for block in torch.split(logits, rows)]
    return torch.cat(blocks)
