"""Moves weights between a Hugging Face folder, or engines, and the ranks: one part of the model at a time.

Rank 0 alone reads a folder and holds whole weights; the others get and give their pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from ale.errors import AleError
from ale_torch.training.model_folder import read_model
from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.model import Policy
from ale_trainer_megatron.weight_map import Part, parts_of


class Mapped:
    """A rank's part of a model, and the parts of all. `like` is the model of transformers, without weights."""

    def __init__(self, model: Policy, like: Any, layout: Layout) -> None:
        self.layout = layout
        self.parts = parts_of(like.config, layout)
        self._tied = bool(like.config.tie_word_embeddings)
        self.shapes: dict[str, torch.Size] = {name: weight.shape for name, weight in like.state_dict().items()}
        numbers = [layer.layer_number - 1 for layer in model.decoder.layers]
        self.parameters: dict[str, nn.Parameter] = {}
        for name, parameter in model.named_parameters():
            words = name.split(".")
            if name.startswith("decoder.layers."):
                words[2] = str(numbers[int(words[2])])
            self.parameters[".".join(words)] = parameter
        for part in self.parts:
            for parameter in self.mine(part) if part.cut is not None else ():
                # Else the norm of all gradients would count it on one rank alone, as what all have the same of.
                parameter.tensor_model_parallel = True  # type: ignore[attr-defined]

    def mine(self, part: Part) -> list[nn.Parameter]:
        """Return this rank's parameters of a part; none if another stage has it."""
        return [self.parameters[name] for name in part.parameters] if part.stage == self.layout.stage else []

    @torch.no_grad()
    def fill(
        self, weights: Mapping[str, Tensor] | None, then: Callable[[Part, list[Tensor]], None] | None = None
    ) -> None:
        """Put weights, which rank 0 has, into the parameters of all ranks; all must call it. `then` gets each part of
        this rank's stage, and its whole weights."""
        for part in self.parts:
            whole = self._broadcast(part, weights)
            if mine := self.mine(part):
                pieces = part.pieces(whole, self.layout, [p.shape for p in mine])
                for parameter, piece in zip(mine, pieces, strict=True):
                    parameter.copy_(piece)
                if then is not None:
                    then(part, whole)

    def _broadcast(self, part: Part, weights: Mapping[str, Tensor] | None) -> list[Tensor]:
        """Give all ranks the weights of a part, which rank 0 has, in float32; all must call it."""
        whole = [torch.empty(self.shapes[n]) if weights is None else weights[n].float() for n in part.names]
        for weight in whole:
            dist.broadcast(weight, 0)
        return whole

    def gather(self, part: Part, tensors: list[Tensor]) -> list[Tensor]:
        """Return a part's weights, or what else has their shape, to all ranks of its stage, of which each gives its
        own."""
        if self.layout.tensor == 1 or part.cut is None:
            return part.whole([tensors])
        ranks: list[list[Tensor]] = [[] for _ in range(self.layout.tensor)]
        for tensor in tensors:
            found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in ranks]
            dist.all_gather(found, tensor.contiguous(), group=self.layout.tensor_group)
            for rank, piece in zip(ranks, found, strict=True):
                rank.append(piece)
        return part.whole(ranks)

    @torch.no_grad()
    def weights(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return copies of all weights by their Hugging Face names, on rank 0; tied ones share a copy. All ranks must
        call it."""
        out: dict[str, Tensor] = {}
        for part in self.parts:
            if not part.is_copy:
                out |= self._collect(part, dtype)
        if out and self._tied:
            out["lm_head.weight"] = out["model.embed_tokens.weight"]
        return out

    def _collect(self, part: Part, dtype: torch.dtype) -> dict[str, Tensor]:
        """Bring a part's weights to rank 0."""
        layout, rank = self.layout, self.layout.world.rank
        owner = layout.rank_of(part.stage)
        whole: list[Tensor] = []
        if part.stage == layout.stage and layout.data_rank == 0:
            found = self.gather(part, [p.detach() for p in self.mine(part)])
            whole = [w.to(dtype).clone(memory_format=torch.contiguous_format) for w in found]
        if rank == owner != 0:
            for weight in whole:
                dist.send(weight, 0)
        if rank == 0 != owner:
            device = next(iter(self.parameters.values())).device
            whole = [torch.empty(self.shapes[name], dtype=dtype, device=device) for name in part.names]
            for weight in whole:
                dist.recv(weight, owner)
        return dict(zip(part.names, whole, strict=True)) if rank == 0 else {}


def read_weights(folder: Path, layout: Layout, dtype: torch.dtype) -> tuple[Any, dict[str, Tensor] | None]:
    """Read a folder; return a model of transformers without weights, and on rank 0 the weights. All ranks raise what
    rank 0 raises: `ConfigError`."""
    failure: AleError | None = None
    weights: dict[str, Tensor] | None = None
    if layout.world.rank == 0:
        try:
            weights = dict(read_model(folder, dtype).state_dict())
        except AleError as error:
            failure = error
    failure = layout.world.gather(failure)[0]
    if failure is not None:
        raise failure
    auto_config: Any = AutoConfig
    auto: Any = AutoModelForCausalLM
    config = auto_config.from_pretrained(str(folder), local_files_only=True)
    with torch.device("meta"):
        skeleton = auto.from_config(config, dtype=dtype)
    return skeleton, weights
