"""The plain loss against a loop over the tokens, as its equation is written."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

from ale.specs.trainer import ChunkTensors, LossInput
from ale_torch.losses.likelihood_loss import LikelihoodLoss


def made(chunk_ids: list[int], returns: list[float]) -> LossInput:
    ids = torch.tensor(chunk_ids)
    chunks = torch.zeros(len(returns), dtype=torch.int64)
    logprobs = torch.linspace(-2.0, -0.1, len(chunk_ids), dtype=torch.float64).requires_grad_()
    return LossInput(
        logprobs=logprobs,
        old_logprobs=None,
        engine_logprobs=logprobs.detach(),
        entropy=torch.full((len(chunk_ids),), 1.5, dtype=torch.float64),
        chunk_ids=ids,
        chunks=ChunkTensors(
            chunks, chunks, chunks + 1, torch.tensor(returns, dtype=torch.float64), chunks > 0, chunks == 0
        ),
        normalizer=4.0,
    )


def test_it_is_the_sum_over_tokens_of_their_chunks_credit_and_its_gradient() -> None:
    inputs = made([0, 0, 1, 2], [0.5, -1.0, 2.0])
    out = LikelihoodLoss()(inputs)
    credits = [0.5, 0.5, -1.0, 2.0]
    logprobs = inputs.logprobs.tolist()
    assert out.loss.item() == pytest.approx(-sum(a * p for a, p in zip(credits, logprobs, strict=True)) / 4)
    out.loss.backward()
    assert inputs.logprobs.grad.tolist() == pytest.approx([-a / 4 for a in credits])


def test_the_entropy_is_the_mean_over_tokens_and_the_loss_can_be_pickled() -> None:
    loss = pickle.loads(pickle.dumps(LikelihoodLoss()))
    totals = {name: float(value) for name, value in loss(made([0, 1, 1], [1.0, 1.0])).sums.items()}
    assert loss.metrics(totals)["entropy"] == 1.5


def test_its_module_imports_no_torch() -> None:
    code = "import sys, ale_torch.losses.likelihood_loss; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
