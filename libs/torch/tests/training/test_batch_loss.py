"""What a forward pass gives a loss."""

from __future__ import annotations

import torch

from ale_torch.training.batch_loss import Passed


def test_a_pass_for_nothing_is_a_zero_also_beside_an_impossible_token() -> None:
    logits = torch.tensor([[0.5, -torch.inf], [0.5, 1.0]], requires_grad=True)
    values = torch.ones(2, requires_grad=True)
    passed = Passed(logits.log_softmax(-1)[:, 1], None, values * 2)
    assert passed.logprobs[0] == -torch.inf
    nothing = passed.nothing()
    nothing.backward()
    assert nothing == 0
    for found in (logits, values):  # on each rank the backward pass goes through all parameters, and changes none
        assert found.grad is not None
        assert not found.grad.any()
