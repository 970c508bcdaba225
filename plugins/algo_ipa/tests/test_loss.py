"""Eqs. 7 to 9 against slow loops written straight from them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.messages import Message
from ale.specs.driver import DriverContext
from ale.specs.trainer import ChunkTensors, LossInput
from ale.trajectory import Chunk, Failure, Score, Sequence, Trajectory
from ale_ipa import IPA
from ale_ipa.loss import chunk_return, log_ratio, mismatch_mask, policy_loss, segments_of

LOGP = st.floats(-8, -1e-3)


def trajectory(
    name: str, reward: float | None, chunk_lengths: list[int], group: str = "g", **changes: Any
) -> Trajectory:
    tokens, chunks, at = [0, 0], [], 2
    for i, n in enumerate(chunk_lengths):
        chunks.append(Chunk(i, 0, at, at + n, tuple(-0.1 * (j + 1) for j in range(n)), (0,) * n, "stop"))
        tokens += [5] * n + [9]
        at += n + 1
    values: dict[str, Any] = {
        "id": name, "task_id": name, "split": "train", "stage": "rl", "step": 1, "group": group, "seed": 0,
        "policy_version": 0, "sequences": (Sequence(tuple(tokens), (Message("user", "x"),)),), "chunks": tuple(chunks),
        "reward": None if reward is None else Score(reward, reward > 0),
    }  # fmt: skip
    return Trajectory(**{**values, **changes})


def make(**config: Any) -> IPA:
    return IPA(IPA.Config(**config), DriverContext())


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Trajectory], list[float], list[float]]:
    shapes = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4))
    rewards = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(shapes), max_size=len(shapes)))
    ts = [trajectory(f"t{i}", r, s) for i, (s, r) in enumerate(zip(shapes, rewards, strict=True))]
    n = sum(map(sum, shapes))
    new = draw(st.lists(LOGP, min_size=n, max_size=n))
    old = draw(st.lists(LOGP, min_size=n, max_size=n))
    return ts, new, old


def slow_loss(ts: list[Trajectory], new: list[float], old: list[float], c: Any) -> float:
    """Eq. 9, one token after the other."""
    tokens: list[dict[str, Any]] = []
    at = 0
    for i, t in enumerate(ts):
        count = len(t.chunks)
        for k, chunk in enumerate(t.chunks, start=1):
            for j in range(len(chunk)):
                tokens.append(
                    {
                        "t": i,
                        "c": (i, k),
                        "n": at,
                        "new": new[at],
                        "old": old[at],
                        "mu": chunk.logprobs[j],
                        "k": k,
                        "K": count,
                    }
                )
                at += 1

    def mean_over(level: str, token: dict[str, Any], a: str, b: str) -> float:
        key = {"token": "n", "chunk": "c", "trajectory": "t"}[level]
        unit = [x for x in tokens if x[key] == token[key]]
        return math.exp(sum(x[a] - x[b] for x in unit) / len(unit))

    z = {
        "token": len(tokens),
        "chunk": len({x["c"] for x in tokens}),
        "trajectory": len({x["t"] for x in tokens}),
    }[c.normalization]
    total = 0.0
    for x in tokens:
        passed = ts[x["t"]].passed
        signal = 1.0 if passed else c.negative_signal
        discount = c.gamma ** (x["K"] - x["k"]) if (c.return_level or c.level) == "chunk" else 1.0
        rho = mean_over(c.ratio_level or c.level, x, "new", "old")
        gap = mean_over(c.mask_level or c.level, x, "old", "mu")
        mask = gap <= c.mismatch_threshold and (c.mismatch_lower is None or gap >= c.mismatch_lower)
        weight = 1.0 if passed else min(1.0, max(0.0, rho))
        total += weight * discount * signal * mask * x["new"]
    return -total / z


LEVELS = st.sampled_from(["chunk", "token", "trajectory"])


@settings(max_examples=120, deadline=None)
@given(
    data=batches(),
    level=LEVELS,
    returns=st.none() | LEVELS,
    ratio=st.none() | LEVELS,
    mask=st.none() | LEVELS,
    normalization=st.sampled_from(["token", "chunk", "trajectory"]),
    gamma=st.floats(0.5, 1.0),
    negative=st.floats(-1, 0),
    threshold=st.floats(0.5, 4),
    lower=st.none() | st.floats(0.01, 0.4),
)
def test_the_loss_is_the_equation(
    data: tuple[list[Trajectory], list[float], list[float]],
    level: str, returns: str | None, ratio: str | None, mask: str | None, normalization: str, gamma: float,
    negative: float, threshold: float, lower: float | None,
) -> None:  # fmt: skip
    ts, new, old = data
    settings_: dict[str, Any] = {"gamma": gamma} if (returns or level) == "chunk" else {}
    if not (returns and ratio and mask):
        settings_["level"] = level
    ipa = make(
        mismatch_lower=lower, return_level=returns, ratio_level=ratio, mask_level=mask, normalization=normalization, negative_signal=negative,
        mismatch_threshold=threshold, **settings_,
    )  # fmt: skip
    batch = ipa.batch(ts)
    if negative == 0 and not any(t.passed for t in ts):
        assert batch is None  # nothing carries a gradient
        return
    assert batch is not None
    keep = batch.chunk_ids >= 0
    table = ChunkTensors(
        *(
            torch.from_numpy(getattr(batch.chunks, f))
            for f in ("trajectory", "position", "count", "returns", "positive")
        )
    )
    engine = torch.from_numpy(batch.engine_logprobs[keep]).double()
    inputs = LossInput(
        torch.tensor(new, dtype=torch.float64), torch.zeros(len(new)), torch.tensor(old, dtype=torch.float64), engine,
        torch.from_numpy(batch.chunk_ids[keep]), table, batch.normalizer,
    )  # fmt: skip
    expected = slow_loss(ts, new, old, ipa.config)
    assert float(ipa.loss(inputs).loss) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@given(signal=st.floats(-1, 1), gamma=st.floats(0.1, 1), count=st.integers(1, 9))
def test_the_return_halves_its_way_back_from_the_last_chunk(signal: float, gamma: float, count: int) -> None:
    returns = [chunk_return(signal, gamma, k, count) for k in range(count)]
    assert returns[-1] == signal
    for earlier, later in zip(returns, returns[1:], strict=False):
        assert earlier == pytest.approx(gamma * later)


def test_the_gradient_is_the_weight_and_does_not_flow_through_the_ratio() -> None:
    new = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.5, -1.0, -0.5], dtype=torch.float64)
    returns = torch.full((3,), -0.3, dtype=torch.float64)
    segments = torch.tensor([0, 0, 1])
    terms = policy_loss(new, old, old, returns, torch.zeros(3, dtype=torch.bool), segments, segments, 2.0, None, 1.0)
    terms.loss.backward()
    rho = math.exp(((-1.0 + 1.5) + (-2.0 + 1.0)) / 2)
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([0.3 * rho, 0.3 * rho, 0.3])


def test_old_and_current_logprobs_make_a_ratio_that_is_not_one() -> None:
    segments = torch.tensor([0, 0])
    assert log_ratio(torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -1.0]), segments).exp()[0] == pytest.approx(
        math.exp(0.5)
    )


@pytest.mark.parametrize("new", [[-1.0, -math.inf], [-math.inf, -math.inf]])
def test_impossible_tokens_and_overflowing_ratios_stay_finite(new: list[float]) -> None:
    logprobs = torch.tensor(new, requires_grad=True)
    old = torch.tensor([-math.inf, -700.0])
    positive = torch.zeros(2, dtype=torch.bool)
    segments = torch.arange(2)
    terms = policy_loss(
        logprobs,
        old,
        torch.tensor([-1.0, -900.0]),
        torch.tensor([-0.5, -0.5]),
        positive,
        segments,
        segments,
        2.0,
        None,
        1.0,
    )
    assert torch.isfinite(terms.weight).all()
    assert not torch.isnan(terms.loss)


def test_everything_masked_is_a_loss_of_zero_with_a_zero_gradient() -> None:
    new = torch.tensor([-1.0, -1.0], requires_grad=True)
    segments = torch.zeros(2, dtype=torch.long)
    terms = policy_loss(
        new, torch.tensor([0.0, 0.0]), torch.tensor([-9.0, -9.0]), torch.ones(2), torch.ones(2, dtype=torch.bool),
        segments, segments, 2.0, None, 1.0,
    )  # fmt: skip
    terms.loss.backward()
    assert float(terms.loss.detach()) == 0.0
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, 0.0]


def test_the_lower_bound_masks_the_other_tail() -> None:
    old, engine, segments = torch.tensor([-3.0]), torch.tensor([-1.0]), torch.tensor([0])
    assert mismatch_mask(old, engine, segments, 2.0).item() == 1.0
    assert mismatch_mask(old, engine, segments, 2.0, lower=0.5).item() == 0.0


def test_adjacent_chunks_do_not_fuse() -> None:
    chunks = (Chunk(0, 0, 1, 3, (-1.0, -1.0), (0, 0), "stop"), Chunk(1, 0, 3, 5, (-1.0, -1.0), (0, 0), "stop"))
    t = trajectory("t", 1.0, [1], sequences=(Sequence((0, 1, 2, 3, 4), ()),), chunks=chunks)
    batch = make(gamma=0.5).batch([t])
    assert batch is not None
    assert batch.chunk_ids.tolist() == [-1, 0, 0, 1, 1]
    assert batch.chunks.returns.tolist() == [0.5, 1.0]


def test_what_the_policy_did_not_sample_carries_no_loss_but_counts_for_the_discount() -> None:
    chunks = (Chunk(0, 0, 1, 2, (), (), "stop", sampled=False), Chunk(1, 0, 3, 4, (-1.0,), (0,), "stop"))
    t = trajectory("t", 1.0, [1], sequences=(Sequence((0, 1, 2, 3), ()),), chunks=chunks)
    batch = make().batch([t])
    assert batch is not None
    assert batch.chunk_ids.tolist() == [-1, -1, -1, 0]
    assert (batch.chunks.position.tolist(), batch.chunks.count.tolist()) == ([1], [2])


def test_untrusted_rollouts_are_left_out_and_nothing_left_is_none() -> None:
    ipa = make()
    bad = [
        trajectory("a", 1.0, [2], failure=Failure("sandbox", "gone", True)),
        trajectory("b", 1.0, [2], rejected="veto"),
        trajectory("c", None, [2]),
    ]
    assert ipa.batch(bad) is None
    assert ipa.batch([]) is None
    kept = ipa.batch([*bad, trajectory("d", 1.0, [2])])
    assert kept is not None
    assert len(kept.lengths) == 1


def test_group_centered_signals_sum_to_zero_and_even_groups_are_dropped_and_counted() -> None:
    ipa = make(return_signal="group_centered", gamma=1.0)
    ts = [
        trajectory("a", 1.0, [1], "g"),
        trajectory("b", 0.0, [1], "g"),
        trajectory("c", 1.0, [1], "h"),
        trajectory("d", 1.0, [1], "h"),
    ]
    batch = ipa.batch(ts)
    assert batch is not None
    assert batch.chunks.returns.tolist() == [0.5, -0.5]
    assert ipa.metrics({"loss_tokens": 1.0})["dropped_groups"] == 1.0


def test_segments_tell_the_units_of_every_level_apart() -> None:
    ids = torch.tensor([4, 4, 7, 9])
    table = ChunkTensors(torch.tensor([0] * 8 + [3, 3]), *[torch.zeros(10)] * 4)
    assert segments_of("token", ids, table).tolist() == [0, 1, 2, 3]
    assert segments_of("chunk", ids, table).tolist() == [4, 4, 7, 9]
    assert segments_of("trajectory", ids, table).tolist() == [0, 0, 0, 3]


@pytest.mark.parametrize(
    "config",
    [
        {"return_signal": "raw", "negative_signal": -0.1},
        {"level": "trajectory", "gamma": 0.9},
        {"old_logprobs": "engine", "mismatch_threshold": 3.0},
        {"return_signal": "group_centered", "group_size": 1},
        {"old_logprobs": "engine", "mask_level": "token"},
        {"mismatch_threshold": 1.0, "mismatch_lower": 1.5},
        {"level": "token", "return_level": "chunk", "ratio_level": "chunk", "mask_level": "chunk"},
        {"gama": 1},
    ],
)
def test_settings_that_would_do_nothing_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        IPA.Config(**config)


@pytest.mark.parametrize("ratio_level", ["token", "chunk", "trajectory"])
def test_the_gradient_is_that_of_finite_differences_with_the_weights_held_fixed(ratio_level: str) -> None:
    torch.manual_seed(0)
    n = 9
    at = torch.randn(n, dtype=torch.float64) - 3
    old, engine = at + 0.3 * torch.randn(n, dtype=torch.float64), at + 0.3 * torch.randn(n, dtype=torch.float64)
    segments = {"token": torch.arange(n), "chunk": torch.arange(n) // 2, "trajectory": torch.arange(n) // 4}[
        ratio_level
    ]
    returns, positive = torch.randn(n, dtype=torch.float64), torch.arange(n) // 4 == 1
    new = at.clone().requires_grad_()
    terms = policy_loss(new, old, engine, returns, positive, segments, segments, 1.2, None, 3.0)
    terms.loss.backward()

    def held(x: torch.Tensor) -> torch.Tensor:
        return -(terms.weight * returns * terms.mask * x).sum() / 3.0

    assert new.grad is not None
    h = 1e-4
    for i in range(n):
        step = torch.zeros(n, dtype=torch.float64)
        step[i] = h
        slope = float(held(at + step) - held(at - step)) / (2 * h)
        assert float(new.grad[i]) == pytest.approx(slope, abs=1e-9)


def test_one_token_chunks_have_the_tokens_own_ratio() -> None:
    new, old = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    assert log_ratio(new, old, torch.tensor([3, 5])).tolist() == [0.5, -1.0]


def test_nothing_to_average_is_nothing() -> None:
    empty = torch.zeros(0)
    none = torch.zeros(0, dtype=torch.long)
    terms = policy_loss(empty, empty, empty, empty, none > 0, none, none, 2.0, None, 1.0)
    assert float(terms.loss) == 0.0


def test_a_unit_that_one_side_holds_impossible_is_masked_whatever_the_threshold() -> None:
    segments = torch.tensor([0, 0, 1])
    for impossible in (torch.tensor([-math.inf, -1.0, -1.0]), torch.tensor([-math.inf, math.inf, -1.0])):
        assert mismatch_mask(impossible, torch.full((3,), -1.0), segments, 1e9).tolist() == [0.0, 0.0, 1.0]
