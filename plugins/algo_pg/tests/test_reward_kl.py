"""A KL penalty in the reward changes advantages as a lower reward would."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest

from ale.errors import PluginError
from ale.specs.driver import DriverContext
from ale_pg import PolicyGradient
from ale_policy_loss.reward_kl import reward_kl
from ale_testing.loss_samples import random_rollouts, rollout


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


def test_without_a_coefficient_nothing_changes_and_without_a_reference_it_is_an_error() -> None:
    rollouts = random_rollouts(1)
    pg = make(variant="grpo")
    batch = pg.batch(rollouts)
    assert batch is not None
    assert pg.credit(batch, rollouts) is batch
    with pytest.raises(PluginError, match="reference_logprobs"):
        reward_kl(batch, 0.1)
