"""Passes of micro-batches through a model whose layers are spread over stages, by megatron-core's own schedule.

Each pass has a `finish`, which the last stage calls with the hidden states: it computes log-probabilities, and of them
a loss, or keeps them. Sequences are end to end; where ranks share them (sequence parallel), one more of zeros makes the
row as long as a multiple of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor

from ale_torch.training.batch_loss import Passed
from ale_torch.training.microbatch import MicroBatch
from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.model import Policy, padded_vocabulary
from ale_trainer_megatron.modules import Sequences
from ale_trainer_megatron.vocab_parallel import token_logprobs

Finish = Callable[[MicroBatch, Passed], Tensor | None]
"""Takes what a pass gave on the last stage; returns the loss, if there is one."""


@dataclass(frozen=True, slots=True)
class Passes:
    """How micro-batches pass through models of one shape. `config` is the folder's."""

    config: Any
    layout: Layout
    device: torch.device
    chunk_tokens: int | None

    def run(self, model: Any, parts: list[tuple[MicroBatch, Finish]], *, temperature: float, backward: bool) -> None:
        """Pass all micro-batches of this rank's copy of the model, with or without their backward passes. `model` is a
        `Policy`, or one that megatron-core wraps for data parallel training. Logits are divided by `temperature`."""
        if not parts:
            return
        schedule = get_forward_backward_func()
        schedule(
            forward_step_func=partial(self._forward_step, temperature),
            data_iterator=iter(parts),
            model=[model],
            num_microbatches=len(parts),
            seq_length=1,  # told with each micro-batch instead
            micro_batch_size=1,
            forward_only=not backward,
            collect_non_loss_data=not backward,
        )

    def _forward_step(
        self, temperature: float, parts: Iterator[tuple[MicroBatch, Finish]], model: Any
    ) -> tuple[Tensor, Any]:
        part, finish = next(parts)
        tokens = torch.from_numpy(part.tokens).to(self.device)
        lengths = list(part.lengths or [])
        short = -tokens.shape[1] % self.layout.tensor if self.layout.sequence_parallel else 0
        if short:
            tokens = torch.nn.functional.pad(tokens, (0, short))
            lengths.append(short)
        hidden = model(tokens, None, None, packed_seq_params=Sequences(lengths, self.device))

        def done(hidden: Tensor, non_loss_data: bool = False) -> Any:
            loss = finish(
                part, self._measure(_unwrap(model), hidden if temperature == 1 else hidden / temperature, tokens, part)
            )
            return None if non_loss_data else (loss, torch.zeros((), dtype=torch.int), {})

        return hidden, done

    def _measure(self, policy: Policy, hidden: Tensor, tokens: Tensor, part: MicroBatch) -> Passed:
        """Compute log-probabilities and entropies of the wanted tokens from hidden states [T or its share, 1, H]."""
        if self.layout.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden)
        at = torch.from_numpy(part.wanted[0]).to(self.device).nonzero().squeeze(-1)
        rows = padded_vocabulary(self.config, self.layout) // self.layout.tensor
        found = token_logprobs(
            hidden[at - 1, 0],
            policy.output_weight,
            tokens[0, at],
            group=self.layout.tensor_group,
            first=self.layout.tensor_rank * rows,
            vocabulary=self.config.vocab_size,
            chunk_tokens=self.chunk_tokens,
        )
        return Passed(*found, None)


def _unwrap(model: Any) -> Policy:
    while not isinstance(model, Policy):
        model = model.module
    return model
