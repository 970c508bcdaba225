"""Eqs. 1 and 2 against a slow loop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.messages import Message
from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTensors, LossInput
from ale.trajectory import Chunk, ChunkError, Sequence, Trajectory
from ale_sft import SFT


def trajectory(lengths: list[int], errors: list[bool], tokens: list[int] | None = None) -> Trajectory:
    chunks, at = [], 1
    for i, (n, bad) in enumerate(zip(lengths, errors, strict=True)):
        error = ChunkError("execution_failed", "no") if bad else None
        chunks.append(Chunk(i, 0, at, at + n, (), (), "stop", sampled=False, error=error))
        at += n
    ids = tuple(tokens or range(at))
    return Trajectory(
        "t", "t", "train", "demonstrations", 0, "g", 0, 0, (Sequence(ids, (Message("user", "x"),)),), tuple(chunks)
    )


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6),
    mask_errors=st.booleans(),
    data=st.data(),
)
def test_the_loss_is_the_masked_mean_of_eq_1(
    shape: list[tuple[int, bool]], mask_errors: bool, data: st.DataObject
) -> None:
    lengths, errors = [n for n, _ in shape], [bad for _, bad in shape]
    sft = SFT(SFT.Config(mask_errors=mask_errors), DriverContext())
    batch = sft.batch([trajectory(lengths, errors)])
    m = [not (bad and mask_errors) for bad in errors]
    if not any(m):
        assert batch is None
        return
    assert batch is not None
    n = sum(lengths)
    logp = data.draw(st.lists(st.floats(-9, 0) | st.just(-math.inf), min_size=n, max_size=n))
    numerator, denominator, at = 0.0, 0.0, 0
    for keep, length in zip(m, lengths, strict=True):
        if keep:
            numerator += sum(x for x in logp[at : at + length] if x > -math.inf)  # what is impossible is skipped
            denominator += length
        at += length
    kept = [logp[i] for i, row in enumerate(batch.chunk_ids[1:]) if row >= 0]
    logprobs = torch.tensor(kept, dtype=torch.float64, requires_grad=True)
    inputs = LossInput(logprobs, torch.zeros(len(kept)), None, None, None, ChunkTensors(*[None] * 6), batch.normalizer)
    loss = sft.loss(inputs).loss
    assert float(loss.detach()) == pytest.approx(-numerator / denominator, abs=1e-6)
    (slopes,) = torch.autograd.grad(loss, logprobs)
    assert slopes.tolist() == pytest.approx([-(x > -math.inf) / denominator for x in kept], abs=1e-7)


def test_repeated_turns_are_masked_by_the_rule() -> None:
    sft = SFT(SFT.Config(task_rules=("near_duplicate",)), DriverContext())
    batch = sft.batch([trajectory([2, 2, 2], [False] * 3, [0, 5, 6, 5, 6, 7, 8])])
    assert batch is not None
    assert batch.chunk_ids.tolist() == [-1, 0, 0, -1, -1, 1, 1]


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="there is no rule 'nope'; the rules are compressed, pruned, near_duplicate"):
        SFT.Config(task_rules=("nope",))


def test_truncated_turns_and_side_contexts_are_masked_by_their_rules() -> None:
    sequences = (Sequence((0, 1, 2, 3), ()), Sequence((0, 4, 5), ()))
    chunks = (
        Chunk(0, 1, 1, 3, (), (), "stop", sampled=False),
        Chunk(1, 0, 1, 2, (), (), "length", sampled=False),
        Chunk(2, 0, 3, 4, (-0.1,), (0,), "stop"),
    )
    t = Trajectory("t", "t", "train", "demonstrations", 0, "g", 0, 0, sequences, chunks)

    def tokens(*rules: str) -> list[int]:
        batch = SFT(SFT.Config(task_rules=rules), DriverContext()).batch([t])
        assert batch is not None
        return sorted(batch.token_ids[batch.chunk_ids >= 0].tolist())

    assert tokens() == [1, 3, 4, 5]
    assert tokens("truncated") == [3, 4, 5]
    assert tokens("side_context") == [1, 3]
    assert tokens("side_context", "truncated", "near_duplicate") == [3]


def test_the_gradient_is_the_same_for_every_token_with_loss() -> None:
    logprobs = torch.randn(7, dtype=torch.float64, requires_grad=True)
    inputs = LossInput(logprobs, torch.zeros(7), None, None, None, ChunkTensors(*[None] * 6), 7.0)
    assert torch.autograd.gradcheck(
        lambda x: SFT(SFT.Config(), DriverContext()).loss(replace(inputs, logprobs=x)).loss,
        (logprobs,),
    )


def test_sums_of_narrow_numbers_are_made_in_float32() -> None:
    logprobs = torch.full((301,), -1.0078125, dtype=torch.bfloat16, requires_grad=True)
    inputs = LossInput(logprobs, logprobs.detach().neg(), None, None, None, ChunkTensors(*[None] * 6), 1.0)
    out = SFT(SFT.Config(), DriverContext()).loss(inputs)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert float(out.loss.detach()) == pytest.approx(303.3515625)
    assert {name: float(value) for name, value in out.sums.items()} == {"loss_tokens": 301, "entropy_sum": 303.3515625}
    assert logprobs.grad is not None
    assert logprobs.grad.dtype == torch.bfloat16
