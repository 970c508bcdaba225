"""The losses of the variants as slow loops over plain numbers, written straight from their equations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean, pstdev, stdev
from typing import Any

import numpy as np
from hypothesis import assume

GROUPED = ("group_mean", "leave_one_out")
ENTROPY = 0.5
"""That of every token of the samples."""


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


def packed_rollouts(scored: list[Rollout], s: Any, config: Any) -> list[int]:
    """The places of the rollouts that are in the batch: those of groups with spread, all with a penalty or bonus."""
    return [i for i in range(len(scored)) if config.kl_coef or config.entropy_coef or has_spread(scored, i, s)]


def has_spread(scored: list[Rollout], i: int, s: Any) -> bool:
    """Whether the rollout has an advantage of its own by its group; whitening over tokens gives one to all."""
    spread = [len({signal(r, s) for r in scored if r.group == name}) > 1 for name in {r.group for r in scored}]
    group = {signal(r, s) for r in scored if r.group == scored[i].group}
    return s.baseline not in GROUPED or len(group) > 1 or (s.scale == "token_std" and any(spread))


def signal(r: Rollout, s: Any) -> float:
    """What is learnt from: the reward, or its sign."""
    reward = float(r.reward or 0.0)
    if s.return_signal == "raw":
        return reward
    return 1.0 if reward > 0 else float(s.negative_signal)


def slow(
    variant: str, scored: list[Rollout], s: Any, config: Any, groups: list[str]
) -> tuple[float, list[list[float]]]:
    """The loss of an update on these groups, and its slope in the log-probability of each token of each rollout.

    Advantages are those of all rollouts of the step, means are over the update's."""
    a = slow_advantages(scored, s)
    kl_coef, correction = config.kl_coef, config.correction
    packed = packed_rollouts(scored, s, config)
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
            if i in held:
                share = slow_share({k: len(scored[k].new) for k in held}, i, s)
                loss -= config.entropy_coef * share * ENTROPY
            if i in held and kl_coef:
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
    """The geometric mean of the ratios of the token's unit; a surrogate's does not see what is left out."""
    chunk_of = [k for k, n in enumerate(n for row in r.rows for n in row) for _ in range(n)]
    unit = {
        "trajectory": range(len(r.new)),
        "chunk": [u for u, k in enumerate(chunk_of) if k == chunk_of[t]],
        "token": [t],
    }[s.level]
    unit = [u for u in unit if variant in ("tis", "topr", "topr_token_mask") or kept[u]]
    return math.exp(sum(r.new[u] - r.old[u] for u in unit) / len(unit))


def objective(variant: str, a: float, r: Rollout, t: int, rho: float, s: Any) -> tuple[float, float]:
    """What one token adds to the objective, and how that grows with its log-probability."""
    if variant in ("reinforce", "rloo"):  # R log pi
        return a * r.new[t], a
    if variant == "tis":
        weight = min(s.tis_cap, rho)
        return weight * a * r.new[t], weight * a
    if variant in ("topr", "topr_token_mask"):
        weight = 1.0 if a > 0 else min(s.tis_cap, rho)
        return weight * a * r.new[t], weight * a
    if variant == "cispo":
        weight = min(1 + s.clip_high, max(1 - s.clip_low, rho))
        return weight * a * r.new[t], weight * a
    # GRPO and its like: min(r A, clip(r) A); where a unit has one ratio, each token carries its own part.
    assume(all(abs(rho - bound) > 1e-6 for bound in (1 + s.clip_high, 1 - s.clip_low, s.dual_clip)))
    clipped = min(1 + s.clip_high, max(1 - s.clip_low, rho))
    if s.dual_clip and a < 0 and min(rho * a, clipped * a) < s.dual_clip * a:
        return s.dual_clip * a, 0.0
    if rho * a <= clipped * a:
        return rho * a, rho * a
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
    if s.scale == "token_std":
        each = [x for r, x in zip(scored, out, strict=True) for _ in r.new]
        if len(each) > 1:
            mean, deviation = fmean(each), stdev(each)
            out = [(x - mean) / (deviation + 1e-6) for x in out]
    return out


def slow_token_advantages(rewards: list[float], costs: list[list[float]], *, whitened: bool) -> list[list[float]]:
    """REINFORCE++: the reward less the costs of the tokens from each on, in order of time, by trajectory."""
    out = [
        [reward - sum(of[i] for i in range(t, len(of))) for t in range(len(of))]
        for reward, of in zip(rewards, costs, strict=True)
    ]
    if not whitened:
        return out
    each = [a for of in out for a in of]
    return [[(a - fmean(each)) / (stdev(each) + 1e-6) for a in of] for of in out]
