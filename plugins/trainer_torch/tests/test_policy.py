"""Log-probabilities and entropies against the model's own logits, padded and end to end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ale_torch.training.model_folder import read_model
from ale_trainer_torch.policy import Policy, find_head, use_packed_attention

ModelFolder = Callable[[str], Path]
TOKENS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]])
WANTED = torch.tensor([[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]], dtype=torch.bool)
LENGTHS = [6, 3]
LINE = torch.cat([TOKENS[0], TOKENS[1, :3]])[None], torch.cat([WANTED[0], WANTED[1, :3]])[None], LENGTHS
NAMES = ["qwen2", "gpt2", "cohere", "gemma2", "window"]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return read_model(folder, dtype)


@pytest.mark.parametrize(
    ("name", "scale", "cap"),
    [("qwen2", 1.0, None), ("gpt2", 1.0, None), ("cohere", 0.0625, None), ("gemma2", 1.0, 2.0)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_is_found_with_its_scale_and_cap(
    model_folder: ModelFolder, name: str, scale: float, cap: float | None, dtype: torch.dtype
) -> None:
    head = find_head(load(model_folder(name), dtype))
    assert head is not None
    assert (head.scale, head.cap) == (scale, cap)


@pytest.mark.parametrize("attribute", ["logit_scale", "final_logit_softcapping"])
def test_a_model_that_does_not_do_what_its_configuration_says_is_asked_for_all_logits(
    model_folder: ModelFolder, attribute: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(model_folder("qwen2"))
    setattr(model.config, attribute, 0.5)
    with caplog.at_level(logging.WARNING):
        assert Policy.of(model).head is None
    assert "not those of a plain output layer" in caplog.text


@pytest.mark.parametrize(("name", "packs"), [(n, n != "gemma2") for n in NAMES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_stand_end_to_end_where_packed_attention_is_their_own(
    model_folder: ModelFolder, name: str, packs: bool, dtype: torch.dtype
) -> None:
    model = load(model_folder(name), dtype)
    before = model.config._attn_implementation
    assert use_packed_attention(model) is packs
    assert (model.config._attn_implementation == before) is not packs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["padded", "end to end", "all logits", "all logits, end to end"])
@pytest.mark.parametrize("chunk", [2, None])
def test_logprobs_and_entropy_are_those_of_the_full_softmax_row_by_row(
    model_folder: ModelFolder, name: str, layout: str, chunk: int | None
) -> None:
    model = load(model_folder(name))
    expected, entropies = [], []
    for row, length in enumerate(LENGTHS):
        table = torch.log_softmax(model(input_ids=TOKENS[row : row + 1, :length]).logits[0], -1).detach()
        for t in range(1, length):
            if WANTED[row, t]:
                expected.append(float(table[t - 1, TOKENS[row, t]]))
                entropies.append(float(-(table[t - 1].exp() * table[t - 1]).sum()))
    policy = Policy.of(model, packing="end to end" in layout, chunk_tokens=chunk)
    if "all logits" in layout:
        policy = Policy(model, None, policy.packs, chunk)
    logprobs, entropy, _ = policy.logprobs(*(LINE if policy.packs else (TOKENS, WANTED)), entropy=True)
    assert entropy is not None
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-5)
    assert entropy.tolist() == pytest.approx(entropies, abs=1e-5)
    assert logprobs.requires_grad
    assert entropy.requires_grad


def test_a_model_without_the_usual_parts_falls_back_to_its_logits(model_folder: ModelFolder) -> None:
    model = load(model_folder("qwen2"))
    model.get_decoder = None
    assert find_head(model) is None


def test_a_model_that_mixes_neighbours_is_not_packed(model_folder: ModelFolder) -> None:
    model = load(model_folder("qwen2"))
    layer = model.get_decoder().layers[0]
    # What a recurrent layer would do: each token gets something of the one before it, whosever it is.
    layer.register_forward_hook(lambda _m, _i, out: out + 0.5 * torch.roll(out, 1, dims=1))
    assert use_packed_attention(model) is False
    assert model.config._attn_implementation != "ale_packed"


@pytest.mark.parametrize("name", ["qwen2", "cohere", "gemma2"])
def test_all_ways_give_the_same_gradient(model_folder: ModelFolder, name: str) -> None:
    grads = []
    for packing in (False, True):
        for chunk in (1, None):
            for whole in (False, True):
                model = load(model_folder(name))
                policy = Policy.of(model, packing=packing, chunk_tokens=chunk)
                if whole:
                    policy = Policy(model, None, policy.packs, chunk)
                logprobs, *_ = policy.logprobs(*(LINE if policy.packs else (TOKENS, WANTED)))
                torch.autograd.backward(logprobs.sum() / 5)
                grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for other in grads[1:]:
        assert torch.allclose(grads[0], other, rtol=0, atol=1e-6)


def test_entropy_is_not_computed_unless_asked_for(model_folder: ModelFolder) -> None:
    assert Policy.of(load(model_folder("qwen2")), packing=False).logprobs(TOKENS, WANTED)[1] is None
