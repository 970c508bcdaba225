"""Eq. 9 in all its settings, and the pull to a reference, against a slow loop written straight from the equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.loss_samples import rollout

from ale.specs.trainer import LossInput
from ale.trajectory import Trajectory
from ale_ipa import IPA
from ale_train.batches import split

LEVELS = st.sampled_from(["chunk", "token", "trajectory"])
LOGPROBS = st.floats(-8, -1 / 1024, width=32)
Numbers = tuple[float, float, float]
"""New, old and reference log-probability of a token."""


@dataclass(frozen=True)
class Token:
    """One sampled token: its group, trajectory, chunk `k` of `count` (from 1), and its log-probabilities."""

    group: str
    trajectory: int
    k: int
    count: int
    number: int
    new: float
    old: float
    engine: float
    reference: float

    def unit(self, level: str) -> tuple[int, ...]:
        """What the token shares its return, ratio or mask with at this level."""
        return {
            "token": (self.number,),
            "chunk": (self.trajectory, self.k),
            "trajectory": (self.trajectory,),
        }[level]


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[list[Trajectory], list[Numbers]]:
    """Trajectories of one or two sequences in up to three groups, some chunks empty; new, old and reference
    log-probability of each token."""
    lengths = st.lists(st.integers(0, 4), min_size=1, max_size=3)
    done, numbers = [], list[Numbers]()
    for i, rows in enumerate(draw(st.lists(st.lists(lengths, min_size=1, max_size=2), min_size=1, max_size=6))):
        n = sum(map(sum, rows))
        engine = draw(st.lists(LOGPROBS, min_size=n, max_size=n))
        done.append(rollout(str(i), float(draw(st.booleans())), rows, engine, group=draw(st.sampled_from("ghi"))))
        numbers += draw(st.lists(st.tuples(LOGPROBS, LOGPROBS, LOGPROBS), min_size=n, max_size=n))
    return done, numbers


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of IPA that are not refused."""
    config: dict[str, Any] = {
        name: draw(st.none() | LEVELS) for name in ("return_level", "ratio_level", "mask_level")
    } | {
        "normalization": draw(st.sampled_from(["token", "chunk", "trajectory"])),
        "return_signal": draw(st.sampled_from(["signed", "raw", "group_centered"])),
        "mismatch_threshold": draw(st.floats(0.5, 4)),
        "mismatch_lower": draw(st.none() | st.floats(0.01, 0.4)),
        "kl_coef": draw(st.sampled_from([0.0, 0.0, 0.5])),
    }
    if config["return_signal"] == "signed":
        config["negative_signal"] = draw(st.floats(-1, -0.01))
    if not all(config[name] for name in ("return_level", "ratio_level", "mask_level")):
        config["level"] = draw(LEVELS)
    if (config["return_level"] or config.get("level", "chunk")) == "chunk":
        config["gamma"] = draw(st.floats(0.5, 1))
    return config


@settings(max_examples=200, deadline=None)
@given(data=rollouts(), config=configs(), updates=st.integers(1, 3), seed=st.integers(0, 9))
def test_each_updates_loss_is_the_equation_with_the_steps_signals(
    make: Callable[..., IPA],
    loss_input: Callable[..., LossInput],
    data: tuple[list[Trajectory], list[Numbers]],
    config: dict[str, Any],
    updates: int,
    seed: int,
) -> None:
    done, numbers = data
    ipa = make(**config)
    assert ipa.reference is (config["kl_coef"] > 0)
    batch = ipa.batch(done)
    tokens = tokens_of(done, numbers)
    names = list(dict.fromkeys(t.group for t in done))
    if batch is None:
        assert not any(slow(tokens, done, ipa.config, names)[1].values())
        return
    trained = batch.chunk_ids >= 0
    packed = [t for t in tokens if is_packed(done, t.group, ipa.config)]
    assert trained.sum() == len(packed), "a group without spread is not computed but for the penalty"
    # Each token with loss carries its number through the cut.
    number = np.zeros(len(trained), np.float32)
    number[trained] = np.arange(len(packed))
    seen: list[str] = []
    for piece in split(replace(batch, old_logprobs=number), updates, seed):
        assert piece.old_logprobs is not None
        assert piece.trajectories is not None
        here = piece.chunk_ids >= 0
        mine = [packed[int(x)] for x in piece.old_logprobs[here]]
        groups = [names[g] for g in dict.fromkeys(piece.trajectories.group.tolist())]
        assert {t.group for t in mine} <= set(groups)
        seen += groups
        old = np.zeros(len(here), np.float32)
        old[here] = [t.old for t in mine]
        piece = ipa.loss.normalize(replace(piece, old_logprobs=old))
        reference = [t.reference for t in mine] if ipa.reference else None
        inputs = loss_input(piece, [t.new for t in mine], [t.old for t in mine], reference=reference, dtype="float64")
        inputs.logprobs.requires_grad_()
        loss = ipa.loss(inputs).loss
        loss.backward()
        expected, slopes = slow(tokens, done, ipa.config, groups)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert inputs.logprobs.grad.tolist() == pytest.approx([slopes[t.number] for t in mine], rel=1e-5, abs=1e-7)
    assert len(seen) == len(set(seen)), "a group is in one update"
    rest = [g for g in names if g not in seen]
    assert not any(slow(tokens, done, ipa.config, rest)[1].values()), "what is in no update has nothing to teach"


def tokens_of(done: list[Trajectory], numbers: list[Numbers]) -> list[Token]:
    """All sampled tokens in order."""
    out: list[Token] = []
    for i, t in enumerate(done):
        for k, chunk in enumerate(t.chunks, start=1):
            for engine in chunk.logprobs:
                new, old, reference = numbers[len(out)]
                out.append(Token(t.group, i, k, len(t.chunks), len(out), new, old, engine, reference))
    return out


def is_packed(done: list[Trajectory], group: str, c: Any) -> bool:
    """Whether the group is in the batch: it has spread, or needs none, or is held near the reference."""
    even = len({t.passed for t in done if t.group == group}) == 1
    return not (c.return_signal == "group_centered" and even) or c.kl_coef > 0


def slow(tokens: list[Token], done: list[Trajectory], c: Any, groups: list[str]) -> tuple[float, dict[int, float]]:
    """Eqs. 7 to 9 and the estimate of the divergence on an update of these groups, one token after the other: the loss,
    and its slope in each token's log-probability. Signals are of all rollouts of the step."""
    here = [t for t in tokens if t.group in groups]
    kept = [t for t in here if not (is_packed(done, t.group, c) and is_masked(t, here, c))]
    z = len({t.unit(c.normalization) for t in kept})
    held = [t for t in here if is_packed(done, t.group, c)]
    z_held = len({t.unit(c.normalization) for t in held})
    loss, gradient = 0.0, dict.fromkeys((t.number for t in here), 0.0)
    for t in kept:
        discount = c.gamma ** (t.count - t.k) if (c.return_level or c.level) == "chunk" else 1.0
        unit = [u for u in here if u.unit(c.ratio_level or c.level) == t.unit(c.ratio_level or c.level)]
        rho = math.prod(math.exp(u.new) / math.exp(u.old) for u in unit) ** (1 / len(unit))
        r = signal(done, t.trajectory, c)
        weight = 1.0 if r > 0 else min(1.0, max(0.0, rho))
        slope = -weight * discount * r / z
        gradient[t.number] += slope
        loss += slope * t.new
    for t in held if c.kl_coef else ():
        d = t.reference - t.new
        curved = min(d, 3.0)
        gradient[t.number] += c.kl_coef / z_held * (1 - math.exp(curved))
        loss += c.kl_coef / z_held * (math.exp(curved) - 1 - curved + (math.exp(3) - 1) * (d - curved))
    return loss, gradient


def is_masked(token: Token, here: list[Token], c: Any) -> bool:
    """Whether engine and trainer disagree on the token's unit."""
    unit = [u for u in here if u.unit(c.mask_level or c.level) == token.unit(c.mask_level or c.level)]
    gap = math.prod(math.exp(u.old) / math.exp(u.engine) for u in unit) ** (1 / len(unit))
    # The engine's numbers are float32: a ratio that close to a bound may fall on either side.
    assume(all(abs(gap / bound - 1) > 1e-5 for bound in (c.mismatch_threshold, c.mismatch_lower) if bound))
    return bool(gap > c.mismatch_threshold or (c.mismatch_lower is not None and gap < c.mismatch_lower))


def signal(done: list[Trajectory], i: int, c: Any) -> float:
    """What is learnt from: the pass or failure, the reward, or what it is above the mean of its group."""
    rewards = [float(t.passed) for t in done if t.group == done[i].group]
    return {
        "signed": 1.0 if done[i].passed else float(c.negative_signal),
        "raw": float(done[i].passed),
        "group_centered": float(done[i].passed) - sum(rewards) / len(rewards),
    }[c.return_signal]
