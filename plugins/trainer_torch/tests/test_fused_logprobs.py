"""Log-probabilities in chunks, against a slow loop in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ale_trainer_torch.fused_logprobs import logprobs_from_logits, token_logprobs

SHAPES = dict(
    seed=st.integers(0, 10_000),
    count=st.integers(0, 9),
    vocabulary=st.integers(1, 40),
    chunk=st.sampled_from([1, 2, 3, 100, None]),
)


def slow(logits: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
    """Log-probabilities and entropies, number by number."""
    logprobs, entropies = [], []
    for row, target in zip(logits.double().tolist(), targets.tolist(), strict=True):
        largest = max(row)
        log_z = largest + math.log(math.fsum(math.exp(x - largest) for x in row))
        logprobs.append(row[target] - log_z)
        entropies.append(-math.fsum(math.exp(x - log_z) * (x - log_z) for x in row if x > -math.inf))
    return logprobs, entropies


def plain(logits: Tensor, targets: Tensor) -> Tensor:
    """The whole table, as autograd sees it."""
    return torch.log_softmax(logits, -1).gather(-1, targets[:, None]).squeeze(-1)


@settings(max_examples=80, deadline=None)
@given(**SHAPES, spread=st.sampled_from([1.0, 30.0, 1e4]), impossible=st.booleans())
def test_extreme_and_impossible_logits_give_what_the_slow_loop_gives(
    seed: int, count: int, vocabulary: int, chunk: int | None, spread: float, impossible: bool
) -> None:
    torch.manual_seed(seed)
    logits = (torch.rand(count, vocabulary) * 2 - 1) * spread
    targets = torch.randint(vocabulary, (count,))
    if impossible and vocabulary > 2:
        logits[:, :2] = -torch.inf
    logits.requires_grad_()
    logprobs, entropy = logprobs_from_logits(logits, targets, chunk_tokens=chunk, entropy=True)
    expected, entropies = slow(logits.detach(), targets)
    assert entropy is not None
    assert logprobs.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert entropy.tolist() == pytest.approx(entropies, rel=1e-4, abs=1e-4)
    torch.autograd.backward((logprobs * torch.randn(count)).sum() + (entropy * torch.randn(count)).sum())
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[logits.isneginf() & (torch.arange(vocabulary) != targets[:, None])] == 0).all()


@settings(max_examples=80, deadline=None)
@given(
    **SHAPES,
    scale=st.sampled_from([1.0, 0.25]),
    cap=st.sampled_from([None, 3.0]),
    temperature=st.sampled_from([1.0, 0.25, 1.7]),
    biased=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_head_in_chunks_gives_the_values_and_gradients_of_the_whole_table(
    seed: int,
    count: int,
    vocabulary: int,
    chunk: int | None,
    scale: float,
    cap: float | None,
    temperature: float,
    biased: bool,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(seed)
    hidden, weight, bias = torch.randn(count, 5), torch.randn(vocabulary, 5), torch.randn(vocabulary)
    targets, slopes = torch.randint(vocabulary, (count,)), torch.randn(count)

    def leaves(dtype: torch.dtype) -> list[Tensor]:
        return [x.to(dtype).requires_grad_() for x in ([hidden, weight, bias] if biased else [hidden, weight])]

    exact, ours = leaves(torch.float64), leaves(dtype)
    logits = scale * torch.nn.functional.linear(*exact)
    logits = (logits if cap is None else cap * torch.tanh(logits / cap)) / temperature
    expected = plain(logits, targets)
    whole = torch.log_softmax(logits, -1)
    torch.autograd.backward((expected * slopes).sum() - (slopes.flip(0) * (whole.exp() * whole).sum(-1)).sum())
    how = {"scale": scale, "cap": cap, "temperature": temperature}
    logprobs, entropy = token_logprobs(
        ours[0], ours[1], targets, ours[2] if biased else None, chunk_tokens=chunk, entropy=True, **how
    )
    assert entropy is not None
    torch.autograd.backward((logprobs * slopes.to(dtype)).sum() + (entropy * slopes.flip(0).to(dtype)).sum())
    assert logprobs.dtype == dtype
    assert torch.allclose(logprobs.double(), expected, atol=1e-5)
    assert entropy.tolist() == pytest.approx(slow(logits, targets)[1], abs=1e-5)
    for a, b in zip(ours, exact, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad.double(), b.grad, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("chunk", [1, 4, None])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_gradients_pass_the_numerical_check(chunk: int | None, cap: float | None) -> None:
    torch.manual_seed(1)
    hidden, weight, bias = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in [(6, 3), (7, 3), (7,)])
    targets = torch.randint(7, (6,))
    check: Callable[..., bool] = torch.autograd.gradcheck
    assert check(
        lambda h, w, b: token_logprobs(h, w, targets, b, chunk_tokens=chunk, scale=0.7, cap=cap, entropy=True),
        (hidden, weight, bias),
    )
    logits = torch.randn(8, 7, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([5, 0, 7, 2, 1, 6])
    assert check(lambda x: logprobs_from_logits(x, targets, rows, chunk_tokens=chunk, entropy=True), (logits,))


def test_the_same_numbers_to_a_millionth_whatever_the_chunk() -> None:
    torch.manual_seed(2)
    hidden, weight = torch.randn(50, 16), torch.randn(2000, 16) * 0.3
    targets = torch.randint(2000, (50,))
    grads = []
    for chunk in (1, 7, 50, None):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        torch.autograd.backward(token_logprobs(h, w, targets, chunk_tokens=chunk)[0].mean())
        assert h.grad is not None
        assert w.grad is not None
        grads.append(torch.cat([h.grad.flatten(), w.grad.flatten()]))
    for other in grads[1:]:
        assert torch.allclose(other, grads[0], rtol=0, atol=1e-6)


def test_gradients_of_bfloat16_weights_are_summed_over_chunks_without_losing_small_terms() -> None:
    torch.manual_seed(3)
    hidden = torch.randn(512, 8, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(30, 8, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(30, (512,))
    logprobs, entropy = token_logprobs(hidden, weight, targets, chunk_tokens=2, entropy=True)
    torch.autograd.backward(logprobs.sum())
    assert entropy is not None
    assert logprobs.dtype == entropy.dtype == torch.float32
    wide = weight.detach().double().requires_grad_()
    expected = plain(hidden.detach().double() @ wide.T, targets)
    torch.autograd.backward(expected.sum())
    assert weight.grad is not None
    assert wide.grad is not None
    assert torch.allclose(logprobs.double(), expected, atol=0.1)
    # One part in 128 is a rounding of bfloat16; sums of 256 chunks in it would be off by many.
    assert (weight.grad.double() - wide.grad).abs().max() < wide.grad.abs().max() / 64


def test_a_target_that_the_logits_hold_impossible_has_no_chance_and_breaks_nothing() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [2.0, 1.0, 0.0]], requires_grad=True)
    logprobs, entropy = logprobs_from_logits(logits, torch.tensor([1, 1]), entropy=True)
    assert entropy is not None
    assert logprobs[0] == -torch.inf
    assert torch.isfinite(entropy).all()
    torch.autograd.backward(torch.where(logprobs.isinf(), 0.0, logprobs).sum())
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[0] == 0).all()


def test_no_position_at_all_gives_empty_results_and_zero_gradients() -> None:
    hidden, weight = torch.randn(0, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    logprobs, entropy = token_logprobs(hidden, weight, torch.zeros(0, dtype=torch.int64), chunk_tokens=3, entropy=True)
    assert entropy is not None
    assert logprobs.shape == entropy.shape == (0,)
    torch.autograd.backward(logprobs.sum())
    assert weight.grad is not None
    assert (weight.grad == 0).all()


def test_a_large_vocabulary_gives_what_the_slow_loop_gives() -> None:
    torch.manual_seed(4)
    logits = torch.randn(3, 150_000) * 5
    targets = torch.tensor([0, 149_999, 77])
    logprobs, entropy = logprobs_from_logits(logits, targets, chunk_tokens=2, entropy=True)
    expected, entropies = slow(logits, targets)
    assert entropy is not None
    assert logprobs.tolist() == pytest.approx(expected, abs=2e-5)
    assert entropy.tolist() == pytest.approx(entropies, rel=5e-5)
