"""Advantages, targets and the loss against slow loops written from their equations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.loss_samples import loss_input, random_rollouts, rollout

from ale.specs.driver import DriverContext
from ale.specs.trainer import LossInput, TrainBatch
from ale.trajectory import Score, Trajectory
from ale_ppo import PPO
from ale_ppo.gae import gae, whiten
from ale_torch.losses.settings import Correction
from ale_torch.losses.token_order import in_order

numbers = st.floats(-3, 3)


def make(**settings: Any) -> PPO:
    return PPO(PPO.Config(**settings), DriverContext())


def credited(ppo: PPO, rollouts: list[Trajectory], *, seed: int = 0) -> TrainBatch:
    """The rollouts' batch with random values and reference log-probabilities, and what `credit` makes of them."""
    batch = ppo.batch(rollouts)
    assert batch is not None
    rng, trained = np.random.default_rng(seed), batch.chunk_ids >= 0
    values, reference = (np.where(trained, rng.normal(0, 1, len(trained)), 0).astype(np.float32) for _ in range(2))
    if ppo.reference:
        batch = replace(batch, reference_logprobs=batch.engine_logprobs + reference)
    return ppo.credit(replace(batch, columns={"values": values}), rollouts)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), st.floats(0.1, 1), st.floats(0, 1))
def test_advantages_are_the_sum_of_discounted_errors_and_of_k_step_advantages(
    steps: list[tuple[float, float]], gamma: float, lam: float
) -> None:
    rewards, values = (np.array(x) for x in zip(*steps, strict=True))
    found, n = gae(rewards, values, gamma, lam), len(steps)
    beyond = np.append(values, 0.0)
    for t in range(n):
        # Eq. 16: an exponentially weighted sum of one-step errors.
        slow = sum(
            (gamma * lam) ** k * (rewards[t + k] + gamma * beyond[t + k + 1] - values[t + k]) for k in range(n - t)
        )
        assert found[t] == pytest.approx(slow, abs=1e-9)
        if lam == 1:  # Eq. 18: the return less the value
            assert found[t] == pytest.approx(sum(gamma**k * rewards[t + k] for k in range(n - t)) - values[t], abs=1e-9)


def peers_gae(
    rewards: torch.Tensor, values: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As frameworks publish it (TRL's PPO trainer, verl's `compute_gae_advantage_return`): rows, all of one length."""
    last, reversed_ = torch.zeros(len(rewards)), []
    for t in reversed(range(rewards.shape[1])):
        following = values[:, t + 1] if t < rewards.shape[1] - 1 else torch.zeros(len(rewards))
        last = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * last
        reversed_.append(last)
    advantages = torch.stack(reversed_[::-1], dim=1)
    returns = advantages + values
    centred = advantages - advantages.mean()
    return centred * torch.rsqrt(centred.square().sum() / (centred.numel() - 1) + 1e-8), returns


def test_whitened_advantages_and_targets_are_those_of_peers() -> None:
    rollouts = [rollout(f"t{i}", float(i % 2), ((2, 3),)) for i in range(4)]
    batch = credited(make(gamma=0.9, gae_lambda=0.8), rollouts)
    at = np.stack(in_order(batch))
    rewards = torch.zeros(at.shape)
    rewards[:, -1] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    advantages, returns = peers_gae(rewards, torch.from_numpy(batch.columns["values"][at]), 0.9, 0.8)
    assert np.abs(batch.columns["advantages"][at] - advantages.numpy()).max() < 1e-5
    assert np.abs(batch.columns["targets"][at] - returns.numpy()).max() < 1e-5


@given(st.integers(0, 1000))
def test_every_token_has_one_place_in_its_trajectory(seed: int) -> None:
    batch = make().batch(random_rollouts(seed))
    assert batch is not None
    places = in_order(batch)
    assert sorted(np.concatenate(places).tolist()) == np.flatnonzero(batch.chunk_ids >= 0).tolist()
    for at in places:
        assert (np.diff(batch.chunks.position[batch.chunk_ids[at]]) >= 0).all()
        assert len(set(batch.chunks.trajectory[batch.chunk_ids[at]])) == 1


def test_tokens_are_in_the_order_in_which_they_were_sampled_over_all_contexts() -> None:
    one = rollout("one", 1.0, ((2, 1), (3,)))
    first, last, middle = one.chunks  # the first context is taken up again after the second
    chunks = tuple(replace(c, index=i) for i, c in enumerate((first, middle, last)))
    batch = make().batch([replace(one, chunks=chunks)])
    assert batch is not None
    (at,) = in_order(batch)
    of_first = int(batch.lengths[0])
    assert at.tolist() == [2, 3, of_first + 2, of_first + 3, of_first + 4, 5]


def test_rewards_stand_at_last_tokens_and_the_kl_penalty_at_each() -> None:
    steps = Score(1.0, True, by_chunk=(0.25, -0.5, 0.0))
    one = replace(rollout("one", 1.0, ((2, 1), (3,))), reward=steps)
    ppo = make(gae_lambda=1.0, whiten=False, step_weight=2.0, reward_kl_coef=0.5)
    batch = credited(ppo, [one])
    assert batch.reference_logprobs is not None
    (at,) = in_order(batch)
    cost = 0.5 * (batch.engine_logprobs - batch.reference_logprobs)[at].astype(float)
    rewards = np.array([0.0, 2 * 0.25, 2 * -0.5, 0.0, 0.0, 1.0]) - cost
    targets = [rewards[t:].sum() for t in range(6)]
    assert batch.columns["targets"][at] == pytest.approx(targets, abs=1e-5)
    assert batch.metrics["reward_kl"] == pytest.approx(cost.sum(), abs=1e-5)


@given(st.lists(numbers, max_size=6))
def test_whitened_numbers_have_mean_0_and_deviation_1(values: list[float]) -> None:
    found = whiten(np.array(values))
    assert found.mean() == pytest.approx(0, abs=1e-6) if values else len(found) == 0
    if len(values) > 1 and np.std(values) > 0.1:
        assert found.std(ddof=1) == pytest.approx(1, abs=1e-5)


def slow_loss(ppo: PPO, batch: TrainBatch, new: list[float], values: list[float], old: list[float]) -> float:
    """Token by token, from the equation in `loss.py`."""
    c, trained = ppo.config, np.flatnonzero(batch.chunk_ids >= 0)
    surrogate = error = kl = 0.0
    kept = 0
    for i, t in enumerate(trained):
        advantage, target, before = (float(batch.columns[k][t]) for k in ("advantages", "targets", "values"))
        ratio = math.exp(new[i] - old[i])
        clipped = min(max(ratio, 1 - c.clip_low), 1 + c.clip_high)
        objective = min(ratio * advantage, clipped * advantage)
        if c.dual_clip is not None and advantage < 0:
            objective = max(objective, c.dual_clip * advantage)
        weight = 1.0
        if c.correction is not None:
            rho = math.exp(old[i] - float(batch.engine_logprobs[t]))
            if not c.correction.reject[0] <= rho <= c.correction.reject[1]:
                weight = 0.0
            else:
                kept, weight = kept + 1, min(rho, c.correction.cap)
        else:
            kept += 1
        surrogate += weight * objective
        held = values[i] if c.vf_clip is None else before + min(max(values[i] - before, -c.vf_clip), c.vf_clip)
        error += max((values[i] - target) ** 2, (held - target) ** 2) / 2
        if c.kl_coef:
            assert batch.reference_logprobs is not None
            kl += (new[i] - float(batch.reference_logprobs[t])) ** 2 / 2
    n = len(trained)
    return -surrogate / (kept or 1) + (c.vf_coef * error + c.kl_coef * kl - c.entropy_coef * 0.5 * n) / n


SETTINGS: list[dict[str, Any]] = [
    {},
    {"clip_low": 0.1, "clip_high": 0.4, "dual_clip": 1.2, "vf_clip": None, "vf_coef": 2.0},
    {"kl_coef": 0.3, "kl_estimator": "k2", "entropy_coef": 0.1, "reward_kl_coef": 0.2},
    {"correction": Correction(level="token", cap=1.1, reject=(0.8, 1.5), reject_level="token"), "whiten": False},
]


def ready(settings: dict[str, Any], seed: int) -> tuple[PPO, TrainBatch, list[list[float]]]:
    """An algorithm, the batch of one update, and new log-probabilities, values and old log-probabilities."""
    ppo = make(**settings)
    batch = credited(ppo, random_rollouts(seed), seed=seed)
    rng, trained = np.random.default_rng(seed), batch.chunk_ids >= 0
    engine = batch.engine_logprobs[trained].astype(float)
    old = engine + rng.normal(0, 0.3, len(engine))
    new, values = old + rng.normal(0, 0.3, len(engine)), rng.normal(0, 1, len(engine))
    whole = np.zeros(len(trained), np.float32)
    whole[trained] = old
    return ppo, ppo.loss.normalize(replace(batch, old_logprobs=whole)), [x.tolist() for x in (new, values, old)]


def inputs_of(batch: TrainBatch, new: list[float], values: list[float], old: list[float]) -> LossInput:
    trained = batch.chunk_ids >= 0
    reference = None if batch.reference_logprobs is None else batch.reference_logprobs[trained].tolist()
    given = loss_input(batch, new, old, reference=reference)
    return replace(given, values=torch.tensor(values, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("settings", SETTINGS)
@given(seed=st.integers(0, 10_000))
def test_the_loss_is_that_of_the_slow_loop(settings: dict[str, Any], seed: int) -> None:
    ppo, batch, (new, values, old) = ready(settings, seed)
    found = ppo.loss(inputs_of(batch, new, values, old))
    assert float(found.loss.detach()) == pytest.approx(slow_loss(ppo, batch, new, values, old), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_pass_the_numerical_check(settings: dict[str, Any]) -> None:
    ppo, batch, (new, values, old) = ready(settings, 7)
    given = inputs_of(batch, new, values, old)

    def loss(logprobs: torch.Tensor, of_values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = ppo.loss(replace(given, logprobs=logprobs, values=of_values)).loss
        return out

    assert torch.autograd.gradcheck(loss, (given.logprobs, given.values), eps=1e-7, atol=1e-6)


def test_explained_variance_is_1_for_a_perfect_critic_and_0_for_a_constant_one() -> None:
    ppo, batch, (new, _, old) = ready({}, 3)
    targets = batch.columns["targets"][batch.chunk_ids >= 0].astype(float)

    def explained(values: list[float]) -> float:
        out = ppo.loss(inputs_of(batch, new, values, old))
        return ppo.loss.metrics({k: float(v) for k, v in {**out.sums, **out.maxima}.items()})["explained_variance"]

    assert explained(targets.tolist()) == pytest.approx(1)
    assert explained([0.3] * len(targets)) == pytest.approx(0, abs=1e-9)
