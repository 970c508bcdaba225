"""Every variant against a slow loop over plain numbers, written straight from its equation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ale.specs.trainer import LossInput
from ale.trajectory import Trajectory
from ale_packing import split
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
    """One to three groups of one to four rollouts: some without a reward, some without a token, some of several
    rows."""
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
        "level": st.sampled_from(["token", "chunk", "trajectory"]),
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
    return config | {"kl_coef": draw(st.sampled_from([0.0, 0.0, 0.5])), "correction": draw(st.none() | corrections())}


UNITS = st.sampled_from(["token", "chunk", "trajectory", "sequence"])


@st.composite
def corrections(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a correction that has something to do."""
    weight = draw(st.sampled_from(["none", "truncate", "mask"]))
    made: dict[str, Any] = {"weight": weight}
    if weight != "none":
        made |= {"level": draw(UNITS), "cap": draw(st.floats(1.1, 9))}
    if weight == "none" or draw(st.booleans()):
        made |= {"reject": (draw(st.floats(0, 0.9)), draw(st.floats(1, 9))), "reject_level": draw(UNITS)}
    return made


@pytest.mark.parametrize("variant", RULES)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), done=rollouts(), updates=st.integers(1, 3))
def test_each_updates_loss_is_the_equation_with_the_steps_advantages(
    make: Callable[..., PolicyGradient],
    build: Callable[..., Trajectory],
    loss_input: Callable[..., LossInput],
    variant: str,
    data: st.DataObject,
    done: list[Rollout],
    updates: int,
) -> None:
    pg = make(variant, **data.draw(configs(variant)))
    batch = pg.batch([build(str(i), r.reward, r.rows, r.engine, group=r.group) for i, r in enumerate(done)])
    kl_coef = pg.config.kl_coef
    assert pg.reference is (kl_coef > 0)
    scored = [r for r in done if r.reward is not None]
    names = list(dict.fromkeys(r.group for r in scored))
    if batch is None:
        _, slopes = slow(variant, scored, pg.settings, kl_coef, names, pg.config.correction)
        assert not any(any(s) for s in slopes)
        return
    trained = batch.chunk_ids >= 0
    packed = packed_rollouts(scored, pg.settings, kl_coef)
    of_token = [(i, t) for i in packed for t in range(len(scored[i].new))]
    assert trained.sum() == len(of_token), "what a group without spread would add is 0, and it is not computed"
    # Each token with loss carries its number through the cut.
    number = np.zeros(len(trained), np.float32)
    number[trained] = np.arange(len(of_token))
    pieces = split(replace(batch, old_logprobs=number), updates, seed=data.draw(st.integers(0, 9)))
    seen: list[str] = []
    for piece in pieces:
        assert piece.old_logprobs is not None
        assert piece.trajectories is not None
        here = piece.chunk_ids >= 0
        tokens = [of_token[int(x)] for x in piece.old_logprobs[here]]
        groups = [names[g] for g in dict.fromkeys(piece.trajectories.group.tolist())]
        assert {scored[i].group for i, _ in tokens} <= set(groups)
        seen += groups
        new, old, reference = ([getattr(scored[i], n)[t] for i, t in tokens] for n in ("new", "old", "reference"))
        numbers = np.zeros(len(here), np.float32)
        numbers[here] = old
        piece = pg.loss.normalize(replace(piece, old_logprobs=numbers))
        inputs = loss_input(piece, new, old, reference=reference if kl_coef else None)
        loss = pg.loss(inputs).loss
        loss.backward()
        expected, slopes = slow(variant, scored, pg.settings, kl_coef, groups, pg.config.correction)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        want = [slopes[i][t] for i, t in tokens]
        assert inputs.logprobs.grad.tolist() == pytest.approx(want, rel=1e-5, abs=1e-7)
    assert len(seen) == len(set(seen)), "a group is in one update"
    _, slopes = slow(variant, scored, pg.settings, kl_coef, [g for g in names if g not in seen], pg.config.correction)
    assert not any(any(s) for s in slopes), "what is in no update has nothing to teach"


def packed_rollouts(scored: list[Rollout], s: Any, kl_coef: float) -> list[int]:
    """The places of the rollouts that are in the batch: those of groups with spread, and of all with a penalty."""
    return [i for i in range(len(scored)) if kl_coef or has_spread(scored, i, s)]


def has_spread(scored: list[Rollout], i: int, s: Any) -> bool:
    """Whether the rollout has an advantage of its own by its group."""
    group = {signal(r, s) for r in scored if r.group == scored[i].group}
    return s.baseline not in GROUPED or len(group) > 1


def signal(r: Rollout, s: Any) -> float:
    """What is learnt from: the reward, or its sign."""
    reward = float(r.reward or 0.0)
    if s.return_signal == "raw":
        return reward
    return 1.0 if reward > 0 else float(s.negative_signal)


def slow(
    variant: str, scored: list[Rollout], s: Any, kl_coef: float, groups: list[str], correction: Any
) -> tuple[float, list[list[float]]]:
    """The loss of an update on these groups, and its slope in the log-probability of each token of each rollout.

    Advantages are those of all rollouts of the step, means are over the update's."""
    a = slow_advantages(scored, s)
    packed = packed_rollouts(scored, s, kl_coef)
    here = [i for i, r in enumerate(scored) if r.group in groups and r.new]
    kept = {
        i: [
            i not in packed or not (masked(variant, scored[i], t, s) or rejected(scored[i], t, correction))
            for t in range(len(scored[i].new))
        ]
        for i in here
    }
    # DAPO's dynamic sampling: a group without spread is not there at all.
    there = [i for i in here if any(kept[i]) and (variant != "dapo" or has_spread(scored, i, s))]
    held = [i for i in here if i in packed]
    loss, slopes = 0.0, [[0.0] * len(r.new) for r in scored]
    for i in here:
        r = scored[i]
        for t in range(len(r.new)):
            if i in there and kept[i][t]:
                share = slow_share({k: sum(kept[k]) for k in there}, i, s) * slow_weight(r, t, correction)
                value, slope = objective(variant, a[i], r, t, unit_ratio(variant, r, t, s, kept[i]), s)
                loss -= share * value
                slopes[i][t] -= share * slope
            if i in held and kl_coef:
                share = slow_share({k: len(scored[k].new) for k in held}, i, s)
                d = r.reference[t] - r.new[t]
                curved = min(d, 3.0)
                loss += kl_coef * share * (math.exp(curved) - 1 - curved + (math.exp(3) - 1) * (d - curved))
                slopes[i][t] += kl_coef * share * (1 - math.exp(curved))
    return loss, slopes


def slow_share(tokens: dict[int, int], i: int, s: Any) -> float:
    """What one token of rollout `i` counts in the mean over rollouts with so many tokens each."""
    return {
        "token": 1 / sum(tokens.values()),
        "trajectory": 1 / len(tokens),
        "trajectory_mean": 1 / len(tokens) / tokens[i],
        "constant": 1 / len(tokens) / s.max_tokens,
    }[s.normalization]


def masked(variant: str, r: Rollout, t: int, s: Any) -> bool:
    """Whether Eq. 6 leaves the token out."""
    if variant != "topr_token_mask":
        return False
    gap = math.exp(r.old[t]) / math.exp(r.engine[t])
    assume(abs(gap / s.mismatch_threshold - 1) > 1e-6)
    return bool(gap > s.mismatch_threshold)


def engine_ratio(r: Rollout, t: int, level: str) -> float:
    """`pi_old / mu` of the token's unit."""
    chunk_of = [k for k, n in enumerate(n for row in r.rows for n in row) for _ in range(n)]
    whole = range(len(r.new))
    unit = {"token": [t], "chunk": [u for u in whole if chunk_of[u] == chunk_of[t]]}.get(level, whole)
    product = math.prod(math.exp(r.old[u]) / math.exp(r.engine[u]) for u in unit)
    return product if level == "sequence" else product ** (1 / len(unit))


def rejected(r: Rollout, t: int, correction: Any) -> bool:
    """Whether the correction leaves the token out."""
    if correction is None or correction.reject is None:
        return False
    low, high = correction.reject
    ratio = engine_ratio(r, t, correction.reject_level)
    assume(all(abs(ratio - bound) > 1e-6 for bound in (low, high)))
    return not low <= ratio <= high


def slow_weight(r: Rollout, t: int, correction: Any) -> float:
    """What the correction multiplies the token's loss by."""
    if correction is None or correction.weight == "none":
        return 1.0
    ratio = engine_ratio(r, t, correction.level)
    assume(all(abs(ratio - bound) > 1e-6 for bound in (1 / correction.cap, correction.cap)))
    if correction.weight == "truncate":
        return min(ratio, float(correction.cap))
    return ratio if 1 / correction.cap <= ratio <= correction.cap else 0.0


def unit_ratio(variant: str, r: Rollout, t: int, s: Any, kept: list[bool]) -> float:
    """The geometric mean of the ratios of the token's unit; GSPO's does not see what is left out."""
    chunk_of = [k for k, n in enumerate(n for row in r.rows for n in row) for _ in range(n)]
    level = "trajectory" if variant == "gspo" else s.level
    unit = {
        "trajectory": range(len(r.new)),
        "chunk": [u for u, k in enumerate(chunk_of) if k == chunk_of[t]],
        "token": [t],
    }[level]
    unit = [u for u in unit if variant != "gspo" or kept[u]]
    return math.exp(sum(r.new[u] - r.old[u] for u in unit) / len(unit))


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
