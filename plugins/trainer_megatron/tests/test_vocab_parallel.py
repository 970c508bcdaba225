"""Log-probabilities over a shared vocabulary are those of `log_softmax`, and so are their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_trainer_megatron.vocab_parallel import token_logprobs


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    """A group of this process alone; `test_layouts.py` has two ranks."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(1, 9),
    vocabulary=st.integers(2, 12),
    padding=st.integers(0, 3),
    chunk=st.one_of(st.none(), st.integers(1, 4)),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 99),
)
def test_they_are_those_of_log_softmax(
    group: Any, count: int, vocabulary: int, padding: int, chunk: int | None, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(count, 5, dtype=torch.float64, requires_grad=True)
    weight = (scale * torch.randn(vocabulary + padding, 5, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(vocabulary, (count,))
    slopes = torch.randn(2, count, dtype=torch.float64)
    table = (hidden @ weight[:vocabulary].t()).log_softmax(-1)
    expected = (table.gather(-1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1))
    found = token_logprobs(hidden, weight, targets, group=group, first=0, vocabulary=vocabulary, chunk_tokens=chunk)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-9)
    for used in ([0, 1], [0], [1]):
        for name, leaf in (("hidden", hidden), ("weight", weight)):
            mine, theirs = (
                torch.autograd.grad([of[i] for i in used], leaf, [slopes[i] for i in used], retain_graph=True)[0]
                for of in (found, expected)
            )
            assert torch.allclose(mine, theirs, atol=1e-7), f"{name}, of {used}"


def test_an_impossible_token_has_no_part_in_the_entropy(group: Any) -> None:
    hidden, weight = torch.ones(1, 1), torch.tensor([[0.0], [0.0], [-torch.inf]])
    logprobs, entropy = token_logprobs(
        hidden, weight, torch.tensor([2]), group=group, first=0, vocabulary=3, chunk_tokens=None
    )
    assert logprobs.item() == -torch.inf
    assert entropy.item() == pytest.approx(torch.tensor(2.0).log().item())
