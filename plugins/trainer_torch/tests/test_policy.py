"""Log-probabilities and entropies against the model's own logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ale_trainer_torch.policy as policy
from ale_trainer_torch.folder import read_model
from ale_trainer_torch.policy import selects_positions, token_logprobs

ModelFolder = Callable[[str], Path]
TOKENS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]])
WANTED = torch.tensor([[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(("name", "selects"), [("qwen2", True), ("gpt2", True), ("cohere", False)])
def test_only_models_without_more_than_an_output_layer_select_positions(
    model_folder: ModelFolder, name: str, selects: bool
) -> None:
    assert selects_positions(read_model(model_folder(name), torch.float32)) is selects


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "cohere"])
def test_logprobs_and_entropy_are_those_of_the_full_softmax_row_by_row(model_folder: ModelFolder, name: str) -> None:
    model = read_model(model_folder(name), torch.float32)
    logprobs, entropy = token_logprobs(model, TOKENS, WANTED, select=selects_positions(model))
    expected, entropies = [], []
    for row, length in ((0, 6), (1, 3)):
        table = torch.log_softmax(model(input_ids=TOKENS[row : row + 1, :length]).logits[0], -1).detach()
        for t in range(1, length):
            if WANTED[row, t]:
                expected.append(float(table[t - 1, TOKENS[row, t]]))
                entropies.append(float(-(table[t - 1].exp() * table[t - 1]).sum()))
    assert logprobs.tolist() == pytest.approx(expected, abs=1e-5)
    assert entropy.tolist() == pytest.approx(entropies, abs=1e-5)
    assert logprobs.requires_grad
    assert not entropy.requires_grad


def test_a_model_without_the_usual_parts_falls_back_to_its_logits(model_folder: ModelFolder) -> None:
    model = read_model(model_folder("qwen2"), torch.float32)
    model.get_decoder = None
    assert selects_positions(model) is False


def test_the_fallback_gives_the_same_gradient(model_folder: ModelFolder) -> None:
    grads = []
    for select in (True, False):
        model = read_model(model_folder("qwen2"), torch.float32)
        torch.autograd.backward(token_logprobs(model, TOKENS, WANTED, select=select)[0].sum())
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.allclose(grads[0], grads[1], atol=1e-6)


def test_entropy_in_blocks_is_entropy_and_an_impossible_token_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 5)
    logits[2, 3] = -torch.inf
    whole = policy._entropy(logits)
    monkeypatch.setattr(policy, "ENTROPY_BLOCK", 10)
    assert torch.equal(policy._entropy(logits), whole)
    assert torch.isfinite(whole).all()
