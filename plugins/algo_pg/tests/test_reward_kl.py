"""A KL penalty in the reward changes advantages as a lower reward would."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest
from support.loss_samples import loss_input, random_rollouts, rollout

from ale.errors import PluginError
from ale.specs.driver import DriverContext
from ale.specs.trainer import TrainBatch
from ale.trajectory import Score, Trajectory
from ale_pg import PolicyGradient
from ale_torch.losses.kl_penalty import reward_kl
from ale_torch.losses.token_order import in_order

from .slow_loops import slow_token_advantages


def make(**settings: object) -> PolicyGradient:
    return PolicyGradient(PolicyGradient.Config(**settings), DriverContext())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_advantages_are_those_of_rewards_less_the_divergence(seed: int) -> None:
    pg, rollouts = make(variant="grpo", reward_kl_coef=0.5), random_rollouts(seed)
    assert pg.reference
    batch = pg.batch(rollouts)
    assert batch is not None
    rng, trained = np.random.default_rng(seed), batch.chunk_ids >= 0
    apart = np.where(trained, rng.normal(0, 1, len(trained)), 0).astype(np.float32)
    batch = replace(batch, reference_logprobs=batch.engine_logprobs - apart, columns={"own": apart})
    credited = pg.credit(batch, rollouts)
    owners = np.repeat(batch.trajectory, batch.lengths)
    costs = [0.5 * float(apart[owners == i].astype(float).sum()) for i in range(len(rollouts))]
    rewards = [i % 2 - cost for i, cost in enumerate(costs)]
    for group in (rewards[:4], rewards[4:]):
        mean, deviation = fmean(group), stdev(group)
        for reward in group:
            i = rewards.index(reward)
            found = credited.chunks.returns[credited.chunks.trajectory == i]
            assert found == pytest.approx([(reward - mean) / (deviation + 1e-6)] * len(found), abs=1e-4)
    assert credited.metrics["reward_kl"] == pytest.approx(fmean(costs), abs=1e-5)
    assert np.array_equal(credited.token_ids, batch.token_ids)
    assert credited.columns is batch.columns


def test_an_even_group_differs_by_its_divergence() -> None:
    pg, alike = make(variant="rloo", reward_kl_coef=1.0), [rollout(f"t{i}", 1.0, ((2,),)) for i in range(2)]
    batch = pg.batch(alike)
    assert batch is not None
    assert not batch.chunks.returns.any()
    reference = batch.engine_logprobs.copy()
    reference[np.flatnonzero(batch.chunk_ids == 0)] -= 0.5
    credited = pg.credit(replace(batch, reference_logprobs=reference), alike)
    assert credited.chunks.returns.tolist() == pytest.approx([-1.0, 1.0])
    assert "dropped_groups" not in credited.metrics


def with_reference(pg: PolicyGradient, rollouts: list[Trajectory], seed: int) -> TrainBatch:
    batch = pg.batch(rollouts)
    assert batch is not None
    apart = np.random.default_rng(seed).normal(0, 1, len(batch.token_ids)).astype(np.float32)
    return replace(batch, reference_logprobs=np.where(batch.chunk_ids >= 0, batch.engine_logprobs - apart, 0))


@pytest.mark.parametrize("estimator", ["k1", "k2"])
@pytest.mark.parametrize("scale", ["none", "token_std"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_a_baseline_a_token_pays_for_what_follows_it(seed: int, scale: str, estimator: str) -> None:
    """REINFORCE++, in the order of time over all contexts; the loss has these advantages token by token."""
    settings = {"baseline": "none", "scale": scale, "reward_kl_coef": 0.3, "reward_kl_estimator": estimator}
    pg, rollouts = make(variant="reinforce", **settings), random_rollouts(seed)
    batch = with_reference(pg, rollouts, seed)
    credited = pg.loss.normalize(pg.credit(batch, rollouts))
    assert batch.reference_logprobs is not None
    places = in_order(batch)
    apart = (batch.engine_logprobs.astype(float) - batch.reference_logprobs).tolist()
    costs = [[0.3 * (apart[i] if estimator == "k1" else apart[i] ** 2 / 2) for i in at] for at in places]
    slow = slow_token_advantages([float(i % 2) for i in range(len(rollouts))], costs, whitened=scale == "token_std")
    inputs = loss_input(credited, [-1.0] * int((batch.chunk_ids >= 0).sum()), None)
    pg.loss(inputs).loss.backward()
    slopes = np.zeros(len(batch.token_ids))
    slopes[batch.chunk_ids >= 0] = -inputs.logprobs.grad * credited.normalizer
    for at, expected in zip(places, slow, strict=True):
        assert slopes[at].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert credited.metrics["reward_kl"] == pytest.approx(fmean(map(sum, costs)), abs=1e-5)
    returns = [slopes[batch.chunk_ids == c].mean() for c in range(len(batch.chunks.returns))]
    assert credited.chunks.returns.tolist() == pytest.approx(returns, rel=1e-4, abs=1e-5)
    found = pg.loss.metrics({name: float(value) for name, value in pg.loss(inputs).sums.items()})
    assert found["advantage"] == pytest.approx(fmean(map(fmean, slow)), abs=1e-5)


def test_advantages_of_tokens_have_those_of_steps_added_and_none_where_a_limit_cut_off() -> None:
    pg = make(variant="reinforce", reward_kl_coef=0.3, step_weight=2.0, mask_truncated=True)
    stepped = replace(rollout("a", 1.0, ((2, 1),)), reward=Score(1.0, True, by_chunk=(0.25, 0.5)))
    rollouts = [stepped, replace(rollout("b", 1.0, ((2,),)), ended_by="budget")]
    batch = with_reference(pg, rollouts, 0)
    credited = pg.credit(batch, rollouts)
    assert batch.reference_logprobs is not None
    first, second = in_order(batch)
    costs = 0.3 * (batch.engine_logprobs - batch.reference_logprobs)[first].astype(float)
    steps = [2 * 0.75, 2 * 0.75, 2 * 0.5]
    expected = [1 + steps[t] - costs[t:].sum() for t in range(3)]
    assert credited.columns["advantages"][first].tolist() == pytest.approx(expected, abs=1e-5)
    assert not credited.columns["advantages"][second].any()


def test_without_a_coefficient_nothing_changes_and_without_a_reference_it_is_an_error() -> None:
    rollouts = random_rollouts(1)
    pg = make(variant="grpo")
    batch = pg.batch(rollouts)
    assert batch is not None
    assert pg.credit(batch, rollouts) is batch
    with pytest.raises(PluginError, match="reference_logprobs"):
        reward_kl(batch, 0.1)
