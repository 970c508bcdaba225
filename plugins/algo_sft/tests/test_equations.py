"""Eqs. 1 and 2 as a slow loop over trajectories, turns and tokens, and what the batch and the loss make of the same."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTensors, LossInput, TrainBatch
from ale.trajectory import Chunk, ChunkError, FinishReason, Sequence, Trajectory
from ale_sft import SFT

VOCABULARY = 7
ERROR = ChunkError("execution_failed", "exit code 1")
TURN = st.tuples(st.integers(0, 4), st.booleans(), st.sampled_from(["stop", "length"]), st.integers(0, 2))
"""Tokens, whether it failed, how it ended, tokens of the environment before it."""


def trajectory(turns: list[tuple[int, bool, FinishReason, int]], draw: torch.Generator) -> Trajectory:
    chunks, at = [], 1
    for i, (length, failed, finish, before) in enumerate(turns):
        at += before
        error = ERROR if failed else None
        chunks.append(Chunk(i, 0, at, at + length, (), (), finish, sampled=False, error=error))
        at += length
    ids = torch.randint(0, VOCABULARY, (at,), generator=draw).tolist()
    return Trajectory("t", "t", "train", "s", 0, "g", 0, 0, (Sequence(tuple(ids), ()),), tuple(chunks))


def slow_loss(trajectories: list[Trajectory], logits: torch.Tensor, *, errors: bool, task: bool) -> torch.Tensor | None:
    """Eq. 1 with the masks of Eq. 2, one token at a time; `logits` [VOCABULARY, VOCABULARY] are those after each
    token."""
    numerator, denominator = torch.zeros((), dtype=torch.float64), 0
    for t in trajectories:
        ids = t.sequences[0].token_ids
        for chunk in t.chunks:
            m_err = 0 if errors and chunk.error is not None else 1
            m_task = 0 if task and chunk.finish_reason == "length" else 1
            for i in range(chunk.start, chunk.end):
                if m_err * m_task:
                    row = logits[ids[i - 1]]
                    numerator = numerator + row[ids[i]] - torch.log(sum(torch.exp(x) for x in row))
                    denominator += 1
    return -numerator / (denominator + 1e-8) if denominator else None


def in_parts(sft: SFT, batch: TrainBatch, logits: torch.Tensor, cuts: list[int]) -> tuple[float, torch.Tensor]:
    """Loss and gradient by the algorithm, the trained tokens cut into micro-batches at `cuts`."""
    ids = torch.from_numpy(batch.token_ids)
    trained = torch.from_numpy(batch.chunk_ids >= 0).nonzero()[:, 0]
    logits = logits.clone().requires_grad_()
    total = 0.0
    for start, end in pairwise([0, *sorted(cuts), len(trained)]):
        part = trained[start:end]
        logprobs = logits[ids[part - 1]].log_softmax(-1).gather(1, ids[part, None])[:, 0]
        inputs = LossInput(
            logprobs,
            torch.zeros(len(part)),
            None,
            None,
            torch.from_numpy(batch.chunk_ids)[part],
            ChunkTensors(*[None] * 6),
            batch.normalizer,
        )
        out = sft.loss(inputs)
        out.loss.backward()
        total += float(out.loss.detach())
    assert logits.grad is not None
    return total, logits.grad


@settings(max_examples=150, deadline=None)
@given(
    turns=st.lists(st.lists(TURN, max_size=4), min_size=1, max_size=3),
    errors=st.booleans(),
    task=st.booleans(),
    seed=st.integers(0, 2**20),
    data=st.data(),
)
def test_loss_and_gradient_are_those_of_eqs_1_and_2_whichever_way_the_batch_is_cut(
    turns: list[list[tuple[int, bool, FinishReason, int]]], errors: bool, task: bool, seed: int, data: st.DataObject
) -> None:
    draw = torch.Generator().manual_seed(seed)
    trajectories = [trajectory(t, draw) for t in turns]
    logits = torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64, generator=draw) * 3
    settings_ = SFT.Config(mask_errors=errors, task_rules=("truncated",) if task else ())
    sft = SFT(settings_, DriverContext())
    leaf = logits.clone().requires_grad_()
    expected = slow_loss(trajectories, leaf, errors=errors, task=task)
    batch = sft.batch(trajectories)
    if expected is None:
        assert batch is None, "where every turn is masked or empty there is nothing to train on"
        return
    assert batch is not None
    expected.backward()
    assert leaf.grad is not None
    tokens = int((batch.chunk_ids >= 0).sum())
    for cuts in ([], data.draw(st.lists(st.integers(0, tokens), max_size=3)), list(range(1, tokens))):
        loss, gradient = in_parts(sft, batch, logits, cuts)
        assert loss == pytest.approx(float(expected), abs=1e-6)
        assert (gradient - leaf.grad).abs().max() < 1e-6


def test_one_turn_of_one_token_has_that_tokens_loss() -> None:
    sft = SFT(SFT.Config(), DriverContext())
    batch = sft.batch([trajectory([(1, False, "stop", 0)], torch.Generator().manual_seed(1))])
    assert batch is not None
    loss, _ = in_parts(sft, batch, torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64), [])
    assert loss == pytest.approx(math.log(VOCABULARY), abs=1e-6)


def test_no_trajectory_at_all_is_no_batch() -> None:
    assert SFT(SFT.Config(), DriverContext()).batch([]) is None
