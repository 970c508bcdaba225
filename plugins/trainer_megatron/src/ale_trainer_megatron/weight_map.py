"""Which weights of a Hugging Face model make up which parameters of megatron-core's, and how ranks share them.

A `Part` is a tensor whose first or second axis is cut among the tensor-parallel ranks:

- queries, keys and values are one matrix there, KV head by KV head: its queries, its key, its value;
- gate and up are one matrix, and each rank has its rows of both;
- experts are tensors of all experts here and matrices of one there;
- embeddings get rows of zeros until every rank has the same number.

The same map moves weights, and other tensors of their shape, such as an optimizer's moments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.model import is_moe, padded_vocabulary

Join = Callable[[list[Tensor]], Tensor]
Split = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Part:
    """`join` makes a tensor of the weights `names`, and `split` takes it apart. Its axis `cut` is shared by the ranks
    of a stage; of a rank's piece, of the shape `view`, come its `parameters` (more than one: along the first axis)."""

    names: tuple[str, ...]
    parameters: tuple[str, ...]
    stage: int
    cut: int | None = None
    view: tuple[int, ...] | None = None
    join: Join = lambda weights: weights[0]
    split: Split = lambda whole: [whole]
    is_copy: bool = False
    """Whether another stage has the same weights too: tied embeddings, on the last."""

    def pieces(self, weights: list[Tensor], layout: Layout, shapes: list[torch.Size]) -> list[Tensor]:
        """Return this rank's parameters, of these shapes."""
        whole = self.join(weights)
        mine = whole if self.cut is None else whole.chunk(layout.tensor, self.cut)[layout.tensor_rank]
        each = [mine] if len(self.parameters) == 1 else list(mine)
        return [piece.reshape(shape) for piece, shape in zip(each, shapes, strict=True)]

    def whole(self, ranks: list[list[Tensor]]) -> list[Tensor]:
        """Return the weights, given the parameters of each tensor-parallel rank."""
        tensors = [torch.stack(pieces) if len(pieces) > 1 else pieces[0] for pieces in ranks]
        tensors = [tensor if self.view is None else tensor.reshape(self.view) for tensor in tensors]
        return self.split(tensors[0] if self.cut is None else torch.cat(tensors, self.cut))


def parts_of(config: Any, layout: Layout) -> list[Part]:
    """Return the parts of a model, in the order of its layers; the same on all ranks. `config` is the folder's."""
    last = layout.pipeline - 1
    rows, embedding = int(config.vocab_size), "model.embed_tokens.weight"

    def of_tokens(name: str, parameter: str, stage: int, *, is_copy: bool = False) -> Part:
        return Part(
            (name,),
            (parameter,),
            stage,
            cut=0,
            join=lambda weights: _pad(weights[0], padded_vocabulary(config, layout)),
            split=lambda whole: [whole[:rows]],
            is_copy=is_copy,
        )

    found = [of_tokens(embedding, "embedding.word_embeddings.weight", 0)]
    for layer in range(config.num_hidden_layers):
        found += _layer_parts(config, layer, layer // (config.num_hidden_layers // layout.pipeline))
    found.append(Part(("model.norm.weight",), ("decoder.final_layernorm.weight",), last))
    if not config.tie_word_embeddings:
        found.append(of_tokens("lm_head.weight", "output_layer.weight", last))
    elif last > 0:
        found.append(of_tokens(embedding, "output_layer.weight", last, is_copy=True))
    return found


def _layer_parts(config: Any, layer: int, stage: int) -> list[Part]:
    theirs, ours = f"model.layers.{layer}.", f"decoder.layers.{layer}."
    attention, width = f"{theirs}self_attn.", config.hidden_size

    def same(name: str, other: str, cut: int | None = None) -> Part:
        return Part((theirs + name,), (ours + other,), stage, cut=cut)

    found = [
        same("input_layernorm.weight", "input_layernorm.weight"),
        same("self_attn.o_proj.weight", "self_attention.linear_proj.weight", 1),
        same("post_attention_layernorm.weight", "pre_mlp_layernorm.weight"),
    ]
    head = getattr(config, "head_dim", None) or width // config.num_attention_heads
    groups = config.num_key_value_heads
    queries = config.num_attention_heads // groups * head

    def join(weights: list[Tensor]) -> Tensor:
        return torch.cat([w.reshape(groups, -1, *w.shape[1:]) for w in weights], 1)

    def split(whole: Tensor) -> list[Tensor]:
        return [part.flatten(0, 1) for part in torch.split(whole, [queries, head, head], 1)]

    for kind, tail in (("weight", (width,)), ("bias", ())):
        if kind == "weight" or config.model_type == "qwen2":
            names = tuple(f"{attention}{letter}_proj.{kind}" for letter in "qkv")
            view = (-1, queries + 2 * head, *tail)
            found.append(
                Part(
                    names, (f"{ours}self_attention.linear_qkv.{kind}",), stage, cut=0, view=view, join=join, split=split
                )
            )
    if config.model_type.startswith("qwen3"):
        found += [same(f"self_attn.{q}_norm.weight", f"self_attention.{q}_layernorm.weight") for q in "qk"]
    if not is_moe(config, layer):
        names = (f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight")
        gated = Part(
            names, (f"{ours}mlp.linear_fc1.weight",), stage, cut=1, view=(2, -1, width), join=torch.stack, split=list
        )
        return [*found, gated, same("mlp.down_proj.weight", "mlp.linear_fc2.weight", 1)]
    experts, count = f"{theirs}mlp.experts.", config.num_experts
    inner = [[f"{ours}mlp.experts.local_experts.{i}.linear_fc{n}.weight" for i in range(count)] for n in (1, 2)]
    return [
        *found,
        same("mlp.gate.weight", "mlp.router.weight"),
        Part(
            (f"{experts}gate_up_proj",),
            tuple(inner[0]),
            stage,
            cut=2,
            view=(count, 2, -1, width),
            join=lambda weights: weights[0].reshape(count, 2, -1, width),
            split=lambda whole: [whole.flatten(1, 2)],
        ),
        Part((f"{experts}down_proj",), tuple(inner[1]), stage, cut=2),
    ]


def _pad(weight: Tensor, rows: int) -> Tensor:
    return torch.cat([weight, weight.new_zeros(rows - len(weight), *weight.shape[1:])])
