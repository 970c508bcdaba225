"""Eq. 10: what of an expert is imitated, and the loss against a slow loop, however the batch is cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ale.specs.algorithm import RolloutHistory, RolloutRequest
from ale.specs.trainer import LossInput, TrainBatch
from ale.task import Task, TaskTests
from ale.trajectory import Trajectory
from ale_ipa import IPA

Make = Callable[..., IPA]
Build = Callable[..., Trajectory]
Inputs = Callable[..., LossInput]
TASKS = [Task(id=name, instruction="Do it.", tests=TaskTests(command="true")) for name in ("a", "b")]
LOGPROBS = st.floats(-6, -1 / 1024, width=32)


def rollout(build: Build, name: str, request: RolloutRequest, lengths: list[int], passed: bool) -> Trajectory:
    """A rollout of that request; its first `start_chunk` chunks are the expert's."""
    made = build(name, float(passed), lengths, group=request.group, task_id=request.task.id)
    chunks = tuple(
        replace(c, sampled=False, logprobs=(), versions=()) if i < request.start_chunk else c
        for i, c in enumerate(made.chunks)
    )
    return replace(made, chunks=chunks, start_chunk=request.start_chunk)


@dataclass(frozen=True)
class Case:
    """Settings, chunk lengths of the expert of task `a`, and how the rollouts of both tasks end."""

    config: dict[str, Any]
    expert: list[int]
    passed: list[bool]
    extra: list[int]
    numbers: list[tuple[float, float]]
    cuts: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    group = draw(st.integers(2, 4))
    config: dict[str, Any] = {
        "group_size": group,
        "experts": {},
        "gamma": draw(st.floats(0.3, 1)),
        "lambda_il": draw(st.sampled_from([0.0, 0.1, 2.0])),
        "normalization": draw(st.sampled_from(["token", "chunk", "trajectory"])),
        "start": draw(st.sampled_from(["parallel", "rollback"])),
        "mismatch_threshold": draw(st.sampled_from([0.5, 2.0])),
    }
    if config["lambda_il"]:
        config |= {"il_when": draw(st.sampled_from(["no_positive", "always"])), "lambda_rl": draw(st.floats(0.1, 3))}
    lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    n = 2 * group
    return Case(
        config,
        lengths,
        draw(st.lists(st.booleans(), min_size=n, max_size=n)),
        draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)),
        draw(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=8, max_size=40)),
        draw(st.integers(0, 2**20)),
    )


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_the_loss_is_equation_10_and_micro_batches_add_up_to_it(
    make: Make, build: Build, loss_input: Inputs, case: Case
) -> None:
    ipa = make(**case.config)
    path = build("expert", 1.0, case.expert, task_id="a", group="")
    requests = ipa.plan(TASKS, RolloutHistory(1, 3, demonstrations=[path]))
    done = []
    for i, (r, passed, extra) in enumerate(zip(requests, case.passed, case.extra, strict=True)):
        done.append(rollout(build, f"t{i}", r, [*case.expert[: r.start_chunk], *[extra] * (1 + i % 2)], passed))
    batch = ipa.batch(done)
    assert batch is not None
    n = int((batch.chunk_ids >= 0).sum())
    numbers = (case.numbers * n)[:n]
    new, old = [a for a, _ in numbers], [b for _, b in numbers]
    old_of = np.zeros(len(batch.chunk_ids), np.float32)
    old_of[batch.chunk_ids >= 0] = old
    batch = ipa.loss.normalize(replace(batch, old_logprobs=old_of))
    expected, gradient = slow(ipa.config, requests, done, path, numbers)
    assert len(gradient) == n, "what is imitated stands behind the rollouts, group by group"

    found, slopes = evaluate(ipa, loss_input(batch, new, old, dtype="float64"))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert slopes.tolist() == pytest.approx(gradient, rel=1e-6, abs=1e-9)

    owner = batch.chunks.trajectory[batch.chunk_ids[batch.chunk_ids >= 0]]
    part_of = np.random.default_rng(case.cuts).integers(0, 3, int(owner.max()) + 1)[owner]
    total, summed = 0.0, torch.zeros(n, dtype=torch.float64)
    for part in range(3):
        index = torch.from_numpy(np.flatnonzero(part_of == part))
        if len(index):
            value, slopes = evaluate(ipa, loss_input(batch, new, old, index.numpy(), dtype="float64"))
            total += value
            summed[index] = slopes
    assert total == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert summed.tolist() == pytest.approx(gradient, rel=1e-6, abs=1e-9)


def evaluate(ipa: IPA, inputs: LossInput) -> tuple[float, torch.Tensor]:
    """The loss and its slope in each token's log-probability."""
    inputs.logprobs.requires_grad_()
    loss = ipa.loss(inputs).loss
    loss.backward()
    return float(loss.detach()), inputs.logprobs.grad


def slow(
    c: Any,
    requests: list[RolloutRequest],
    done: list[Trajectory],
    path: Trajectory,
    numbers: list[tuple[float, float]],
) -> tuple[float, list[float]]:
    """Eq. 10, one token after the other: first every rollout by Eq. 9, then each group's part of the expert."""
    # trajectory, chunk, lambda x G, weight, whether it is masked
    tokens: list[tuple[str, int, float, float, bool]] = []
    at = 0
    for t in done:
        for k, chunk in enumerate(t.chunks, start=1):
            if not chunk.sampled:
                continue
            members = list(range(at, at + len(chunk)))
            at += len(chunk)
            ratio = math.exp(sum(numbers[i][0] - numbers[i][1] for i in members) / len(members))
            gap = math.exp(sum(numbers[i][1] - e for i, e in zip(members, chunk.logprobs, strict=True)) / len(members))
            assume(abs(gap / c.mismatch_threshold - 1) > 1e-5)
            reward = 1.0 if t.passed else c.negative_signal
            weight = 1.0 if t.passed else min(1.0, ratio)
            g = c.gamma ** (len(t.chunks) - k) * reward
            tokens += [(t.id, k, c.lambda_rl * g, weight, gap > c.mismatch_threshold)] * len(chunk)
    groups: list[tuple[str, int]] = []
    for r in requests:
        if r.task.id == "a" and (r.group, r.start_chunk) not in groups:
            groups.append((r.group, r.start_chunk))
    for group, start in groups:
        solved = any(t.passed for t in done if t.group == group)
        if c.lambda_il == 0 or (solved and c.il_when == "no_positive"):
            continue
        for k in range(1, start + 2):
            members = list(range(at, at + len(path.chunks[k - 1])))
            at += len(members)
            g = c.gamma ** (len(path.chunks) - k)
            tokens += [(f"expert of {group}", k, c.lambda_il * g, 1.0, False)] * len(members)
    kept = [token for token in tokens if not token[-1]]
    z = {
        "token": len(kept),
        "chunk": len({(name, k) for name, k, *_ in kept}),
        "trajectory": len({name for name, *_ in kept}),
    }[c.normalization]
    loss, gradient = 0.0, []
    for (_, _, g, weight, masked), (new, _) in zip(tokens, numbers, strict=True):
        gradient.append(0.0 if masked else -g * weight / z)
        loss += gradient[-1] * new
    return loss, gradient


def prepared(
    make: Make, build: Build, passed: Callable[[RolloutRequest], bool], **config: Any
) -> tuple[IPA, list[Trajectory], TrainBatch | None]:
    """Two rollouts from each of the starts 0 and 3 of an expert with chunks of 1, 2, 3 and 4 tokens."""
    ipa = make(**{"experts": {}, "group_size": 4, "anchors": 2, **config})
    path = build("expert", 1.0, [1, 2, 3, 4], task_id="a", group="")
    requests = ipa.plan(TASKS[:1], RolloutHistory(1, 3, demonstrations=[path]))
    done = [rollout(build, f"t{i}", r, [*[1, 2, 3][: r.start_chunk], 5], passed(r)) for i, r in enumerate(requests)]
    return ipa, done, ipa.batch(done)


def imitated(batch: TrainBatch | None) -> list[list[int]]:
    """For each expert in the batch: which of its chunks are imitated, by their position."""
    assert batch is not None
    rows = ~batch.chunks.sampled
    owners = batch.chunks.trajectory[rows]
    return [batch.chunks.position[rows][owners == owner].tolist() for owner in np.unique(owners)]


def test_where_no_rollout_of_a_start_passed_the_expert_is_imitated_up_to_it(make: Make, build: Build) -> None:
    assert imitated(prepared(make, build, lambda r: False)[2]) == [[0], [0, 1, 2, 3]]
    assert imitated(prepared(make, build, lambda r: r.start_chunk == 0)[2]) == [[0, 1, 2, 3]]
    assert imitated(prepared(make, build, lambda r: r.start_chunk == 3)[2]) == [[0]]
    assert imitated(prepared(make, build, lambda r: True)[2]) == []


def test_one_success_of_a_group_is_enough(make: Make, build: Build) -> None:
    ipa, done, _ = prepared(make, build, lambda r: False)
    assert done[0].reward is not None
    done[0] = replace(done[0], reward=replace(done[0].reward, value=1.0, passed=True))
    assert imitated(ipa.batch(done)) == [[0, 1, 2, 3]]


def test_always_imitates_beside_successes_too_and_a_weight_of_zero_never(make: Make, build: Build) -> None:
    assert imitated(prepared(make, build, lambda r: True, il_when="always")[2]) == [[0], [0, 1, 2, 3]]
    assert imitated(prepared(make, build, lambda r: False, lambda_il=0)[2]) == []


def test_imitated_chunks_have_the_returns_of_the_experts_own_length(make: Make, build: Build) -> None:
    _, _, batch = prepared(make, build, lambda r: r.start_chunk == 0, gamma=0.5)
    assert batch is not None
    rows = ~batch.chunks.sampled
    assert batch.chunks.returns[rows].tolist() == [0.125, 0.25, 0.5, 1.0]
    assert batch.chunks.count[rows].tolist() == [4] * 4
    assert batch.chunks.positive[rows].all()


@pytest.mark.parametrize(("normalization", "z"), [("token", 4 * 5 + 10), ("chunk", 4 + 4), ("trajectory", 4 + 1)])
def test_z_counts_what_is_imitated_too(make: Make, build: Build, normalization: str, z: float) -> None:
    _, _, batch = prepared(make, build, lambda r: r.start_chunk == 0, normalization=normalization)
    assert batch is not None
    assert batch.normalizer == z


def test_an_own_success_that_became_the_expert_is_imitated_as_nobodys_sample(make: Make, build: Build) -> None:
    """Its engine log-probabilities are of an old policy and count for nothing."""
    _, _, batch = prepared(make, build, lambda r: False)
    assert batch is not None
    of_expert = ~batch.chunks.sampled[batch.chunk_ids] & (batch.chunk_ids >= 0)
    assert of_expert.sum() == 1 + 10
    assert (batch.engine_logprobs[of_expert] == 0).all()


def test_a_group_without_spread_still_has_its_expert(make: Make, build: Build) -> None:
    _, _, batch = prepared(make, build, lambda r: False, return_signal="group_centered")
    assert imitated(batch) == [[0], [0, 1, 2, 3]]
    assert batch is not None
    assert batch.chunks.sampled.sum() == 0
    assert batch.normalizer == 11 + 4 * 5, "the rollouts count, as they would with spread"
    assert prepared(make, build, lambda r: True, return_signal="group_centered")[2] is None


def test_rollouts_that_cannot_be_trusted_say_nothing_about_a_start(make: Make, build: Build) -> None:
    ipa, done, _ = prepared(make, build, lambda r: False)
    assert ipa.batch([replace(t, reward=None) for t in done]) is None
    # Had the rejected one counted, nothing would be imitated for the beginning.
    assert done[0].reward is not None
    vetoed = replace(done[0], rejected="veto", reward=replace(done[0].reward, passed=True))
    assert imitated(ipa.batch([vetoed, *done[1:]])) == [[0], [0, 1, 2, 3]]


def test_experts_are_remembered_while_training_lags_and_not_for_ever(make: Make, build: Build) -> None:
    ipa, done, _ = prepared(make, build, lambda r: False)
    path = build("expert", 1.0, [1, 2, 3, 4], task_id="a", group="")
    for step in range(2, 10):
        ipa.plan(TASKS[:1], RolloutHistory(step, 3, demonstrations=[path]))
    assert imitated(ipa.batch(done)) == [[0], [0, 1, 2, 3]]
    for step in range(10, 40):
        ipa.plan(TASKS[:1], RolloutHistory(step, 3, demonstrations=[path]))
    assert imitated(ipa.batch(done)) == []


def test_statistics_are_of_sampled_tokens_and_imitation_has_its_own(
    make: Make, build: Build, loss_input: Inputs
) -> None:
    ipa, _, batch = prepared(make, build, lambda r: r.start_chunk == 0)
    assert batch is not None
    n = int((batch.chunk_ids >= 0).sum())
    # What is imitated is far from anything: it would show in every mean.
    new = [-1.0] * 20 + [-30.0] * 10
    out = ipa.loss(loss_input(batch, new, [-1.0] * 20 + [-0.1] * 10))
    metrics = ipa.loss.metrics({k: float(v) for k, v in out.sums.items()})
    assert n == 30
    assert (metrics["il_tokens"], metrics["il_loss"]) == (10, 30)
    assert (metrics["loss_tokens"], metrics["loss_chunks"], metrics["ratio"], metrics["positive"]) == (20, 4, 1, 0.5)
    assert metrics["kl_old"] == 0
    alone = loss_input(batch, new, [-1.0] * 30, slice(20, 30))
    assert ipa.loss.metrics({k: float(v) for k, v in ipa.loss(alone).sums.items()})["il_loss"] == 30


def test_sums_of_narrow_numbers_are_made_in_float32(make: Make, build: Build, loss_input: Inputs) -> None:
    """The expert's chunk has 301 tokens, which bfloat16 cannot count, and a return that it cannot hold."""
    ipa = make(experts={}, group_size=2, gamma=0.95, normalization="trajectory")
    path = build("expert", 1.0, [301, 1], task_id="a", group="")
    requests = ipa.plan(TASKS[:1], RolloutHistory(1, 3, demonstrations=[path]))
    done = [rollout(build, f"t{i}", r, [301, 1], False) for i, r in enumerate(requests)]
    batch = ipa.batch(done)
    assert batch is not None
    trained = batch.chunk_ids[batch.chunk_ids >= 0]
    said = np.flatnonzero(~batch.chunks.sampled[trained])
    inputs = loss_input(batch, [-1.0078125] * len(trained), [-1.0] * len(trained), said, dtype="bfloat16")
    inputs.logprobs.requires_grad_()
    out = ipa.loss(inputs)
    out.loss.backward()
    returns = [float(batch.chunks.returns[i]) for i in trained[said]]
    assert min(returns) == pytest.approx(0.95)
    assert out.loss.dtype == torch.float32
    assert float(out.loss.detach()) == pytest.approx(1.0078125 * sum(returns) / batch.normalizer, rel=1e-6)
    assert float(out.sums["il_tokens"]) == len(said) > 301
    assert float(out.sums["il_nll_sum"]) == pytest.approx(1.0078125 * len(said), rel=1e-6)
    assert inputs.logprobs.grad.dtype == torch.bfloat16


def test_a_mask_that_takes_all_rollouts_out_leaves_the_imitation(make: Make, build: Build, loss_input: Inputs) -> None:
    ipa, _, batch = prepared(make, build, lambda r: False)
    assert batch is not None
    inputs = loss_input(batch, [-1.0] * 31, [math.inf] * 20 + [-math.inf] * 11)
    _, slopes = evaluate(ipa, inputs)
    assert (slopes[:20] == 0).all()
    assert (slopes[20:] < 0).all()
    assert torch.isfinite(slopes).all()
