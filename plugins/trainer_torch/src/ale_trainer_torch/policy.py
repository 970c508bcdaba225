"""A Hugging Face causal LM as a policy: log-probabilities and entropies of given tokens.

Two properties of a model are tested when it is loaded; each has a slower alternative that works for every model:

1. Whether its logits are a plain output layer over its decoder, perhaps scaled or soft-capped. Then only positions
   before a token with loss go through that layer, in chunks (`fused_logprobs.py`). Else all logits are computed.
2. Whether sequences may be packed end to end in one row (`attention.py`). Else they are padded on the right: in a
   causal model no token looks at one behind it, so no attention mask is needed there either.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ale.errors import ConfigError
from ale_torch.training.attention import PACKED
from ale_torch.training.batch_loss import Passed
from ale_trainer_torch.fused_logprobs import logprobs_from_logits, token_logprobs
from ale_trainer_torch.rotary import use_own_lengths

log = logging.getLogger("ale.trainer.torch")

VALUE_HEAD = "value_head"
"""The attribute of a model that holds its value head."""
PROBE = (5, 3)
"""Lengths of the sequences with which a model is tested."""
LOUD = 200.0
"""Factor on the logits of a test, so that a cap becomes visible."""


@dataclass(frozen=True, slots=True)
class Head:
    """An output layer whose logits are multiplied by `scale` and then soft-capped at `cap`."""

    layer: nn.Linear
    scale: float = 1.0
    cap: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and how to compute its log-probabilities. `head` is None if all logits must be computed; `packs` says
    whether sequences may be packed end to end."""

    model: Any
    head: Head | None
    packs: bool
    chunk_tokens: int | None = None
    value_head: nn.Linear | None = None

    @classmethod
    def of(cls, model: Any, *, packing: bool = True, chunk_tokens: int | None = None) -> Policy:
        """Test the model. With `packing`, its attention is replaced if that works."""
        head = find_head(model)
        if head is None:
            log.warning(
                "The logits of %s are not those of a plain output layer: all of them are computed, which needs more "
                "memory with a large vocabulary.",
                type(model).__name__,
            )
        by_length = use_own_lengths(model)
        packs = packing and use_packed_attention(model)
        if by_length and not packs:
            raise ConfigError(
                f"The rotary positions of {type(model).__name__} depend on a sequence's length, which only sequences "
                "that are packed end to end keep: "
                + ("it cannot take these; take another model." if packing else "set trainer.packing to true.")
            )
        if packing and not packs:
            log.info("%s cannot take sequences end to end: they are padded to like lengths.", type(model).__name__)
        return cls(model, head, packs, chunk_tokens)

    def with_model(self, model: Any) -> Policy:
        """Use another model of the same architecture in the same way."""
        use_own_lengths(model)
        if self.packs:
            model.set_attn_implementation(PACKED)
        head = self.head and replace(self.head, layer=model.get_output_embeddings())
        return replace(self, model=model, head=head, value_head=None)

    def with_value_head(self, dtype: torch.dtype) -> Policy:
        """Put a value head into the model: `v = w . hidden + b` of the last hidden states, 0 at first.

        Raises `ConfigError` for a model whose logits are not a plain output layer over these.
        """
        if self.head is None:
            raise ConfigError(
                f"trainer.value_head is true, but the logits of {type(self.model).__name__} are not those of a plain "
                "output layer over its last hidden states, which a value head needs; take another model."
            )
        layer = nn.Linear(self.head.layer.in_features, 1, dtype=dtype, device=self.head.layer.weight.device)
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
        setattr(self.model, VALUE_HEAD, layer)
        return replace(self, value_head=layer)

    def logprobs(
        self,
        tokens: Tensor,
        wanted: Tensor,
        lengths: list[int] | None = None,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
    ) -> Passed:
        """Compute log-probabilities of the wanted tokens, entropies (nats) if asked for, and values if there is a value
        head: what it expects of the state before each token. Logits are divided by `temperature`.

        tokens [B, T] int64, rows right-padded, or with `lengths` one row of sequences end to end; wanted [B, T] bool,
        never True for the first token of a sequence. All results are [wanted.sum()] float32, in row-major order.
        """
        rows = (wanted.flatten().nonzero().squeeze(-1)) - 1
        targets = tokens[wanted]
        extra = {} if lengths is None else sequence_arguments(lengths, tokens.device)
        if self.head is None:
            logits = self.model(input_ids=tokens, use_cache=False, **extra).logits.flatten(0, 1)
            logits = logits if temperature == 1 else logits / temperature
            found = logprobs_from_logits(logits, targets, rows, chunk_tokens=self.chunk_tokens, entropy=entropy)
            return Passed(*found, None)
        hidden = self.model.get_decoder()(input_ids=tokens, use_cache=False, **extra)[0].flatten(0, 1)[rows]
        layer = self.head.layer
        found = token_logprobs(
            hidden,
            layer.weight,
            targets,
            layer.bias,
            chunk_tokens=self.chunk_tokens,
            scale=self.head.scale,
            cap=self.head.cap,
            temperature=temperature,
            entropy=entropy,
        )
        values = None if self.value_head is None else self.value_head(hidden).sum(-1).to(found[0].dtype)
        return Passed(*found, values)


def sequence_arguments(lengths: list[int], device: torch.device) -> dict[str, Any]:
    """Return a model's arguments for packed sequences."""
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
    return {"position_ids": positions, "sequence_lengths": lengths}


@torch.no_grad()
def find_head(model: Any) -> Head | None:
    """Return the output layer if the logits are its outputs with only the configuration's scale and cap; else None."""
    layer, config = model.get_output_embeddings(), model.config
    if type(layer) is not nn.Linear:
        return None
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    head = Head(layer, scale, getattr(config, "final_logit_softcapping", None))
    tokens = _probe(model)[None]
    hook = layer.register_forward_hook(lambda _module, _inputs, logits: logits * LOUD)
    try:
        expected = model(input_ids=tokens, use_cache=False).logits
        found = layer(model.get_decoder()(input_ids=tokens, use_cache=False)[0]) * head.scale
    except (AttributeError, TypeError):
        return None
    finally:
        hook.remove()
    if head.cap is not None:
        found = head.cap * torch.tanh(found / head.cap)
    return head if _alike(expected, found) else None


@torch.no_grad()
def use_packed_attention(model: Any) -> bool:
    """Give the model the attention of `attention.py` if packed sequences then get the same logits as one by one; else
    keep its own. Return whether it was replaced."""
    config = model.config
    if not set(getattr(config, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}:
        return False
    tokens, lengths = _probe(model), list(PROBE)
    extra = sequence_arguments(lengths, tokens.device)
    other = tokens.clone()
    other[: lengths[0]] = tokens[0]

    def logits(ids: Tensor, **more: Any) -> Tensor:
        found: Tensor = model(input_ids=ids[None], use_cache=False, **more).logits[0]
        return found

    try:
        alone = torch.cat([logits(part) for part in torch.split(tokens, lengths)])
        with _attention(model, PACKED) as keep:
            together, beside = logits(tokens, **extra), logits(other, **extra)
            # Rounding can hide a small leak between sequences here; a change of the neighbouring sequence shows it.
            leaks = not torch.equal(together[lengths[0] :], beside[lengths[0] :])
            keep.append(model.config._attn_implementation == PACKED and not leaks and _alike(alone, together))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False
    return keep[0]


@contextmanager
def _attention(model: Any, name: str) -> Iterator[list[bool]]:
    """Switch the model's attention, and switch back at the end unless True was put into the list."""
    before, keep = model.config._attn_implementation, list[bool]()
    model.set_attn_implementation(name)
    try:
        yield keep
    finally:
        if not any(keep):
            model.set_attn_implementation(before)


def _probe(model: Any) -> Tensor:
    """Return the tokens for a test. [sum(PROBE)]"""
    embeddings = model.get_input_embeddings()
    return torch.arange(sum(PROBE), device=embeddings.weight.device) % int(embeddings.num_embeddings)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors differ by no more than rounding, relative to their largest value."""
    slack = 1e-4 if torch.finfo(a.dtype).bits >= 32 else 3e-2
    return a.shape == b.shape and bool((a - b).abs().max() <= slack * a.abs().max())
