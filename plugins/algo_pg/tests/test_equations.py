"""Every variant against a slow loop over plain numbers, written straight from its equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ale.specs.trainer import LossInput
from ale.trajectory import Trajectory
from ale_pg import PolicyGradient
from ale_pg.variants import RULES

GROUPED = ("group_mean", "leave_one_out")


def logprobs(seed: int, n: int) -> list[float]:
    """Log-probabilities between -6 and 0, exact in float32. (Drawn one by one they would take most of the time.)"""
    rng = np.random.default_rng(seed)
    return [float(x) for x in np.minimum(rng.exponential(1.5, n), 6).astype(np.float32) * np.float32(-1)]


@dataclass
class Rollout:
    """A trajectory: its group, its reward, the lengths of its chunks row by row, and its sampled tokens."""

    group: str
    reward: float | None
    rows: list[list[int]]
    new: list[float] = field(default_factory=list)
    old: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)


@st.composite
def rollouts(draw: st.DrawFn) -> list[Rollout]:
    """One to three groups of one to four rollouts: some without a reward, some without a token, some of several rows."""
    out = []
    for g in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 4))):
            rows = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=2))
            n = sum(map(sum, rows))
            numbers = [logprobs(draw(st.integers(0, 1 << 30)), n) for _ in range(4)]
            out.append(Rollout(f"g{g}", draw(st.sampled_from([None, 0.0, 0.0, 0.25, 1.0])), rows, *numbers))
    return out


@st.composite
def configs(draw: st.DrawFn, variant: str) -> dict[str, Any]:
    """Settings that act on the variant."""
    rule, config = RULES[variant], {}  # type: ignore[index,var-annotated]
    values = {
        "return_signal": st.sampled_from(["raw", "signed"]),
        "normalization": st.sampled_from(["token", "trajectory", "trajectory_mean"]),
        "baseline": st.sampled_from(["none", "batch_mean", "group_mean", "leave_one_out"]),
        "clip_low": st.floats(0.05, 1.2),
        "clip_high": st.floats(0.05, 3),
        "tis_cap": st.floats(0.2, 3),
        "mismatch_threshold": st.floats(0.3, 4),
        "max_tokens": st.integers(1, 100),
    }
    for name, strategy in values.items():
        if name in rule.open and (value := draw(st.none() | strategy)) is not None:
            config[name] = value
    if "scale" in rule.open:
        baseline = config.get("baseline", rule.settings.baseline)
        scales = ["none"] + ["batch_std"] * (baseline != "none") + ["group_std"] * (baseline in GROUPED)
        config["scale"] = draw(st.sampled_from(scales))
    return config | {"kl_coef": draw(st.sampled_from([0.0, 0.0, 0.5]))}


@pytest.mark.parametrize("variant", RULES)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), done=rollouts())
def test_the_loss_is_the_equation(
    make: Callable[..., PolicyGradient],
    build: Callable[..., Trajectory],
    loss_input: Callable[..., LossInput],
    variant: str,
    data: st.DataObject,
    done: list[Rollout],
) -> None:
    pg = make(variant, **data.draw(configs(variant)))
    batch = pg.batch([build(str(i), r.reward, r.rows, r.engine, group=r.group) for i, r in enumerate(done)])
    kl_coef = pg.config.kl_coef
    assert pg.reference is (kl_coef > 0)
    scored = [r for r in done if r.reward is not None]
    if batch is None:  # the reference alone is no reason for a step
        _, slopes = slow(variant, scored, pg.settings, 0.0)
        assert not any(any(s) for s in slopes)
        return
    expected, slopes = slow(variant, scored, pg.settings, kl_coef)
    # What an even group adds is 0 times something, and its tokens are not computed.
    trained = trained_rollouts(done, pg.settings)
    new, old, reference = ([x for _, r in trained for x in getattr(r, n)] for n in ("new", "old", "reference"))
    inputs = loss_input(batch, new, old, reference=reference if kl_coef else None)
    loss = pg.loss(inputs).loss
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    want = [s for i, _ in trained for s in slopes[i]]
    assert inputs.logprobs.grad.tolist() == pytest.approx(want, rel=1e-5, abs=1e-7)


def trained_rollouts(done: list[Rollout], s: Any) -> list[tuple[int, Rollout]]:
    """The rollouts that are in the batch, each with its place among those that have a reward."""
    scored = [r for r in done if r.reward is not None]
    spread = {r.group for r in scored for q in scored if r.group == q.group and signal(r, s) != signal(q, s)}
    return [(i, r) for i, r in enumerate(scored) if s.baseline not in GROUPED or r.group in spread]


def signal(r: Rollout, s: Any) -> float:
    """What is learnt from: the reward, or its sign."""
    reward = float(r.reward or 0.0)
    if s.return_signal == "raw":
        return reward
    return 1.0 if reward > 0 else float(s.negative_signal)


def slow(variant: str, scored: list[Rollout], s: Any, kl_coef: float) -> tuple[float, list[list[float]]]:
    """The loss, and its slope in the log-probability of each token of each rollout."""
    a = slow_advantages(scored, s)
    # DAPO's dynamic sampling: a group without spread is not there at all.
    there = [i for i, _ in trained_rollouts(scored, s)] if variant == "dapo" else range(len(scored))
    with_tokens = [i for i in there if scored[i].new]
    all_tokens = sum(len(scored[i].new) for i in with_tokens)
    pulled = [i for i, _ in trained_rollouts(scored, s)]  # the others are not in the batch
    loss, slopes = 0.0, []
    for i, r in enumerate(scored):
        slopes.append([0.0] * len(r.new))
        n = len(r.new)
        if i not in with_tokens:
            continue
        log_rho = sum(x - y for x, y in zip(r.new, r.old, strict=True)) / n
        for t in range(n):
            share = {
                "token": 1 / all_tokens,
                "trajectory": 1 / len(with_tokens),
                "trajectory_mean": 1 / len(with_tokens) / n,
                "constant": 1 / len(with_tokens) / s.max_tokens,
            }[s.normalization]
            value, slope = objective(variant, a[i], r, t, math.exp(log_rho), s)
            loss -= share * value
            slopes[-1][t] -= share * slope
            if i in pulled:
                apart = math.exp(r.reference[t]) / math.exp(r.new[t])
                loss += kl_coef * share * (apart - 1 - (r.reference[t] - r.new[t]))
                slopes[-1][t] += kl_coef * share * (1 - apart)
    return loss, slopes


def objective(variant: str, a: float, r: Rollout, t: int, rho: float, s: Any) -> tuple[float, float]:
    """What one token adds to the objective, and how that grows with its log-probability."""
    ratio = math.exp(r.new[t]) / math.exp(r.old[t])
    if variant in ("reinforce", "rloo"):  # R log pi
        return a * r.new[t], a
    if variant == "tis":
        weight = min(s.tis_cap, rho)
        return weight * a * r.new[t], weight * a
    if variant in ("topr", "topr_token_mask"):
        weight = 1.0 if a > 0 else min(s.tis_cap, rho)
        if variant == "topr_token_mask":
            gap = math.exp(r.old[t]) / math.exp(r.engine[t])
            assume(abs(gap / s.mismatch_threshold - 1) > 1e-6)
            weight *= gap <= s.mismatch_threshold
        return weight * a * r.new[t], weight * a
    if variant == "cispo":
        weight = min(1 + s.clip_high, max(1 - s.clip_low, ratio))
        return weight * a * r.new[t], weight * a
    # GRPO and its like: min(r A, clip(r) A); of GSPO, a sequence's is spread evenly over its tokens.
    x = rho if variant == "gspo" else ratio
    assume(abs(x - (1 + s.clip_high)) > 1e-6)
    assume(abs(x - (1 - s.clip_low)) > 1e-6)
    clipped = min(1 + s.clip_high, max(1 - s.clip_low, x))
    if x * a <= clipped * a:
        return x * a, x * a
    return clipped * a, 0.0


def slow_advantages(scored: list[Rollout], s: Any) -> list[float]:
    """Reward minus baseline over deviation, by the words of the settings."""
    rewards = [signal(r, s) for r in scored]
    out, spread = [], []
    for i, r in enumerate(scored):
        group = [rewards[k] for k, q in enumerate(scored) if q.group == r.group]
        others = [rewards[k] for k, q in enumerate(scored) if q.group == r.group and k != i]
        spread.append(len(set(group)) > 1)
        baseline = {
            "none": 0.0,
            "batch_mean": fmean(rewards) if len(set(rewards)) > 1 else rewards[i],
            "group_mean": fmean(group) if spread[i] else rewards[i],
            "leave_one_out": fmean(others) if spread[i] else rewards[i],
        }[s.baseline]
        out.append((rewards[i] - baseline) / (stdev(group) + 1e-6 if s.scale == "group_std" and spread[i] else 1.0))
    if s.scale == "batch_std":
        counted = [x for x, differs in zip(out, spread, strict=True) if differs or s.baseline not in GROUPED]
        out = [x / (pstdev(counted) + 1e-6) if counted else x for x in out]
    return out


@pytest.mark.parametrize("variant", RULES)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), done=rollouts())
def test_loss_gradient_and_sums_add_up_however_the_trajectories_are_cut(
    make: Callable[..., PolicyGradient],
    build: Callable[..., Trajectory],
    loss_input: Callable[..., LossInput],
    variant: str,
    data: st.DataObject,
    done: list[Rollout],
) -> None:
    pg = make(variant)
    batch = pg.batch([build(str(i), r.reward, r.rows, r.engine, group=r.group) for i, r in enumerate(done)])
    assume(batch is not None)
    assert batch is not None
    n = int((batch.chunk_ids >= 0).sum())
    new, old = (logprobs(data.draw(st.integers(0, 1 << 30)), n) for _ in range(2))
    numbers = sorted(set(batch.trajectory.tolist()))
    cut = data.draw(st.lists(st.integers(0, 2), min_size=len(numbers), max_size=len(numbers)))
    whole = loss_input(batch, new, old)
    out = pg.loss(whole)
    out.loss.backward()
    loss, gradients, sums = 0.0, {}, dict.fromkeys(out.sums, 0.0)
    for part in range(3):
        mine = [t for t, c in zip(numbers, cut, strict=True) if c == part]
        piece = loss_input(batch, new, old, mine)
        found = pg.loss(piece)
        found.loss.backward()
        loss += float(found.loss.detach())
        for name, value in found.sums.items():
            sums[name] += float(value)
        owners = batch.chunks.trajectory[piece.chunk_ids.numpy()]
        gradients |= {t: piece.logprobs.grad[torch.from_numpy(owners == t)] for t in mine}
    assert loss == pytest.approx(float(out.loss.detach()), rel=1e-9, abs=1e-12)
    assert sums == pytest.approx({k: float(v) for k, v in out.sums.items()}, rel=1e-9, abs=1e-9)
    owners = batch.chunks.trajectory[whole.chunk_ids.numpy()]
    for t in numbers:
        apart = whole.logprobs.grad[torch.from_numpy(owners == t)] - gradients[t]
        assert apart.abs().max() < 1e-6
