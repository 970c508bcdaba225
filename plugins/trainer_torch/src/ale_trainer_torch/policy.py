"""A Hugging Face causal LM as a policy: log-probabilities and entropies of given tokens.

Only positions whose token carries loss go through the output layer: with a large vocabulary the logits are most of
the memory and much of the time. Where a model does not show its decoder and its output layer, all positions do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def token_logprobs(model: nn.Module, tokens: Tensor, lengths: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy (nats, detached) of the wanted tokens.

    tokens [B, T] int64, right-padded; lengths [B]; wanted [B, T] bool, never True in column 0. Both results are
    [wanted.sum()] float32, in row-major order of `wanted`.
    """
    mask = torch.arange(tokens.shape[1], device=tokens.device)[None, :] < lengths[:, None]
    before = torch.zeros_like(wanted)
    before[:, :-1] = wanted[:, 1:]
    targets = tokens[wanted]
    logits = _logits_at(model, tokens, mask, before).float()
    log_z = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - log_z
    with torch.no_grad():
        entropy = log_z - (torch.softmax(logits, dim=-1) * logits).sum(-1)
    return logprobs, entropy.detach()


def _logits_at(model: Any, tokens: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    # Right padding needs no attention mask in a causal model: no real token looks at one behind it. An all-true mask
    # lets the library take its fast causal path.
    decoder, head = getattr(model, "model", None), model.get_output_embeddings()
    plain = decoder is not None and head is not None and not getattr(model.config, "final_logit_softcapping", None)
    if plain:
        hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
        return torch.as_tensor(head(hidden[positions]))
    return torch.as_tensor(model(input_ids=tokens, attention_mask=mask.long(), use_cache=False).logits[positions])
