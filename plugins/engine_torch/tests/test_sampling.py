"""Sampling: distribution, cuts, independence of rows."""

from __future__ import annotations

import torch

from ale.specs.engine import Sampling
from ale_engine_torch.sampling import is_plain, sample, uniform_stream


def test_sampling_follows_the_distribution_and_its_cuts() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4000, 1)
    draws = uniform_stream(7, 4000)
    tokens, logprobs = sample(logits, draws, [Sampling()] * 4000)
    shares = torch.bincount(tokens, minlength=4) / 4000
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03)
    assert torch.allclose(logprobs.exp(), torch.tensor([0.5, 0.3, 0.15, 0.05])[tokens])
    assert set(sample(logits, draws, [Sampling(top_k=2)] * 4000)[0].tolist()) == {0, 1}
    assert set(sample(logits, draws, [Sampling(top_p=0.4)] * 4000)[0].tolist()) == {0}
    sharp = sample(logits, draws, [Sampling(temperature=0.1)] * 4000)[0]
    assert float((sharp == 0).float().mean()) > 0.98
    assert sample(logits[:1], [1.0 - 1e-12], [Sampling(top_k=2)])[0].item() in (0, 1), "the last edge stays inside"


def test_the_quick_way_samples_what_the_general_way_samples() -> None:
    torch.manual_seed(1)
    logits = torch.randn(500, 640) * 3
    draws = uniform_stream(3, 500)
    quick, general = sample(logits, draws, None), sample(logits, draws, [Sampling()] * 500)
    assert torch.equal(quick[0], general[0])
    assert torch.allclose(quick[1], general[1], atol=1e-5)
    assert is_plain(Sampling())
    assert not any(is_plain(s) for s in (Sampling(temperature=0.9), Sampling(top_k=1), Sampling(top_p=0.5)))


def test_a_row_is_sampled_alike_alone_and_among_others_with_other_settings() -> None:
    torch.manual_seed(2)
    logits = torch.randn(4, 640)
    draws = uniform_stream(5, 4)
    settings = [Sampling(), Sampling(temperature=0.0), Sampling(top_p=0.3), Sampling(temperature=2.0, top_k=50)]
    together = sample(logits, draws, settings)[0].tolist()
    alone = [sample(logits[i : i + 1], draws[i : i + 1], settings[i : i + 1])[0].item() for i in range(4)]
    assert together == alone
    assert together[1] == int(logits[1].argmax())


def test_a_draw_at_the_very_end_never_falls_on_a_token_without_probability() -> None:
    logits = torch.full((1, 640), float("-inf"))
    logits[0, 3] = logits[0, 9] = 0.0
    assert sample(logits, [1.0 - 2.0**-53], None)[0].item() == 9
    assert sample(logits, [0.0], None)[0].item() == 3


def test_logits_that_are_no_numbers_give_a_token_whose_log_probability_says_so() -> None:
    for settings in (None, [Sampling(temperature=0.5)]):
        tokens, logprobs = sample(torch.full((1, 8), float("nan")), [0.5], settings)
        assert 0 <= tokens.item() < 8
        assert bool(logprobs.isnan().all())
