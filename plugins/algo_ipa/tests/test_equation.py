"""Eq. 9 in all its settings, and the pull to a reference, against a slow loop written straight from the equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ale.specs.trainer import LossInput
from ale.testing.losses import rollout
from ale.trajectory import Trajectory
from ale_ipa import IPA

LEVELS = st.sampled_from(["chunk", "token", "trajectory"])
LOGPROBS = st.floats(-8, -1 / 1024, width=32)
Numbers = tuple[float, float, float]
"""New, old and reference log-probability of a token."""


@dataclass(frozen=True)
class Token:
    """One sampled token: its trajectory, chunk `k` of `count` (from 1), and its log-probabilities."""

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
    """Trajectories of one or two sequences, some chunks empty; new, old and reference log-probability of each token."""
    lengths = st.lists(st.integers(0, 4), min_size=1, max_size=3)
    done, numbers = [], list[Numbers]()
    for i, rows in enumerate(draw(st.lists(st.lists(lengths, min_size=1, max_size=2), min_size=1, max_size=4))):
        n = sum(map(sum, rows))
        done.append(rollout(str(i), float(draw(st.booleans())), rows, draw(st.lists(LOGPROBS, min_size=n, max_size=n))))
        numbers += draw(st.lists(st.tuples(LOGPROBS, LOGPROBS, LOGPROBS), min_size=n, max_size=n))
    return done, numbers


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of IPA that are not refused."""
    config: dict[str, Any] = {
        name: draw(st.none() | LEVELS) for name in ("return_level", "ratio_level", "mask_level")
    } | {
        "normalization": draw(st.sampled_from(["token", "chunk", "trajectory"])),
        "negative_signal": draw(st.floats(-1, -0.01)),
        "mismatch_threshold": draw(st.floats(0.5, 4)),
        "mismatch_lower": draw(st.none() | st.floats(0.01, 0.4)),
        "kl_coef": draw(st.sampled_from([0.0, 0.0, 0.5])),
    }
    if not all(config[name] for name in ("return_level", "ratio_level", "mask_level")):
        config["level"] = draw(LEVELS)
    if (config["return_level"] or config.get("level", "chunk")) == "chunk":
        config["gamma"] = draw(st.floats(0.5, 1))
    return config


@settings(max_examples=200, deadline=None)
@given(data=rollouts(), config=configs())
def test_the_loss_is_the_equation(
    make: Callable[..., IPA],
    loss_input: Callable[..., LossInput],
    data: tuple[list[Trajectory], list[Numbers]],
    config: dict[str, Any],
) -> None:
    done, numbers = data
    ipa = make(**config)
    assert ipa.reference is (config["kl_coef"] > 0)
    batch = ipa.batch(done)
    assume(numbers)
    assert batch is not None
    passed = [t.passed for t in done]
    expected, gradient = slow(tokens_of(done, numbers), passed, ipa.config)
    new, old, reference = (list(column) for column in zip(*numbers, strict=True))
    inputs = loss_input(batch, new, old, reference=reference if ipa.reference else None, dtype="float64")
    inputs.logprobs.requires_grad_()
    loss = ipa.loss(inputs).loss
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert inputs.logprobs.grad.tolist() == pytest.approx(gradient, rel=1e-5, abs=1e-7)


def tokens_of(done: list[Trajectory], numbers: list[Numbers]) -> list[Token]:
    """All sampled tokens in order."""
    out: list[Token] = []
    for i, t in enumerate(done):
        for k, chunk in enumerate(t.chunks, start=1):
            for engine in chunk.logprobs:
                new, old, reference = numbers[len(out)]
                out.append(Token(i, k, len(t.chunks), len(out), new, old, engine, reference))
    return out


def slow(tokens: list[Token], passed: list[bool], c: Any) -> tuple[float, list[float]]:
    """Eqs. 7 to 9 and the estimate of the divergence, one token after the other: the loss, and its slope in each token's log-probability."""
    z = len({t.unit(c.normalization) for t in tokens})
    loss, gradient = 0.0, []
    for t in tokens:
        discount = c.gamma ** (t.count - t.k) if (c.return_level or c.level) == "chunk" else 1.0
        unit = [u for u in tokens if u.unit(c.ratio_level or c.level) == t.unit(c.ratio_level or c.level)]
        rho = math.prod(math.exp(u.new) / math.exp(u.old) for u in unit) ** (1 / len(unit))
        unit = [u for u in tokens if u.unit(c.mask_level or c.level) == t.unit(c.mask_level or c.level)]
        gap = math.prod(math.exp(u.old) / math.exp(u.engine) for u in unit) ** (1 / len(unit))
        # The engine's numbers are float32: a ratio that close to a bound may fall on either side.
        assume(all(abs(gap / bound - 1) > 1e-5 for bound in (c.mismatch_threshold, c.mismatch_lower) if bound))
        m = gap <= c.mismatch_threshold and (c.mismatch_lower is None or gap >= c.mismatch_lower)
        r = 1.0 if passed[t.trajectory] else c.negative_signal
        weight = 1.0 if passed[t.trajectory] else min(1.0, max(0.0, rho))
        slope = -weight * discount * r * m / z
        apart = math.exp(t.reference) / math.exp(t.new)
        pull = c.kl_coef / z
        gradient.append(slope + pull * (1 - apart))
        loss += slope * t.new + pull * (apart - 1 - (t.reference - t.new))
    return loss, gradient
