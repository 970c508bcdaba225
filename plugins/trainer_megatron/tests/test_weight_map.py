"""The map of weights: complete, and the same there and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from megatron_setup import CONFIGS
from transformers import AutoModelForCausalLM

from ale_torch.ranks import World
from ale_trainer_megatron.layout import Layout
from ale_trainer_megatron.weight_map import parts_of


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_weight_is_in_one_part_and_comes_back_from_the_pieces_of_all_ranks(name: str, tensor: int) -> None:
    auto: Any = AutoModelForCausalLM
    weights: dict[str, torch.Tensor] = auto.from_config(CONFIGS[name]).state_dict()
    ranks = [Layout(World(rank, tensor), tensor, 1, sequence_parallel=False) for rank in range(tensor)]
    parts = parts_of(CONFIGS[name], ranks[0])
    mapped = [weight for part in parts for weight in part.names]
    tied = {"lm_head.weight"} if CONFIGS[name].tie_word_embeddings else set()
    assert len(mapped) == len(set(mapped))
    assert set(mapped) == weights.keys() - tied
    for part in parts:
        theirs = [torch.randn(weights[weight].shape) for weight in part.names]
        shapes = [_shape(part.join(theirs), part.cut, len(part.parameters), tensor)] * len(part.parameters)
        pieces = [part.pieces(theirs, layout, shapes) for layout in ranks]
        for weight, back in zip(theirs, part.whole(pieces), strict=True):
            assert torch.equal(weight, back), part.names


def _shape(whole: torch.Tensor, cut: int | None, parameters: int, tensor: int) -> torch.Size:
    """The shape of a matrix or vector of one rank: that of its piece, without the axes that only the map has."""
    shape = list(whole.shape)
    if cut is not None:
        shape[cut] //= tensor
    if parameters > 1:
        shape = shape[1:]
    return torch.Size([-1, *shape[-1:]] if len(shape) > 1 else shape)
