"""Eq. 9 in all its settings against a slow loop written straight from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ale.specs.trainer import LossInput
from ale.trajectory import Trajectory
from ale_ipa import IPA

LEVELS = st.sampled_from(["chunk", "token", "trajectory"])
LOGPROBS = st.floats(-8, -1 / 1024, width=32)


@dataclass(frozen=True)
class Token:
    """One sampled token: its trajectory, chunk `k` of `count` (from 1), and its three log-probabilities."""

    trajectory: int
    k: int
    count: int
    number: int
    new: float
    old: float
    engine: float

    def unit(self, level: str) -> tuple[int, ...]:
        """What the token shares its return, ratio or mask with at this level."""
        return {
            "token": (self.number,),
            "chunk": (self.trajectory, self.k),
            "trajectory": (self.trajectory,),
        }[level]


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[list[list[int]], list[bool], list[tuple[float, float]]]:
    """Chunk lengths of each trajectory, which of them passed, and new and old log-probability of each token."""
    shapes = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4))
    passed = draw(st.lists(st.booleans(), min_size=len(shapes), max_size=len(shapes)))
    n = sum(map(sum, shapes))
    return shapes, passed, draw(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=n, max_size=n))


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
    build: Callable[..., Trajectory],
    loss_input: Callable[..., LossInput],
    data: tuple[list[list[int]], list[bool], list[tuple[float, float]]],
    config: dict[str, Any],
) -> None:
    shapes, passed, logprobs = data
    ipa = make(**config)
    done = [build(str(i), float(p), s) for i, (s, p) in enumerate(zip(shapes, passed, strict=True))]
    expected, gradient = slow(tokens_of(done, logprobs), passed, ipa.config)
    batch = ipa.batch(done)
    assert batch is not None
    new, old = [a for a, _ in logprobs], [b for _, b in logprobs]
    inputs = loss_input(batch, new, old, dtype="float64")
    inputs.logprobs.requires_grad_()
    loss = ipa.loss(inputs).loss
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert inputs.logprobs.grad.tolist() == pytest.approx(gradient, rel=1e-5, abs=1e-7)


def tokens_of(done: list[Trajectory], logprobs: list[tuple[float, float]]) -> list[Token]:
    """All sampled tokens in order."""
    out: list[Token] = []
    for i, t in enumerate(done):
        for k, chunk in enumerate(t.chunks, start=1):
            for engine in chunk.logprobs:
                new, old = logprobs[len(out)]
                out.append(Token(i, k, len(t.chunks), len(out), new, old, engine))
    return out


def slow(tokens: list[Token], passed: list[bool], c: Any) -> tuple[float, list[float]]:
    """Eqs. 7 to 9, one token after the other: the loss, and its slope in each token's log-probability."""
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
        gradient.append(slope)
        loss += slope * t.new
    return loss, gradient
