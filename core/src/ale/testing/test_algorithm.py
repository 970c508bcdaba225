"""The algorithm contract: what to roll out, what to train on, and a loss that adds up. Nothing here needs a model."""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from ale.specs.algorithm import Algorithm, RolloutHistory
from ale.specs.trainer import ChunkTensors, LossInput, TrainBatch
from ale.task import Task, TaskTests
from ale.testing.batches import mixed_group, trajectory, two_contexts, unscored, with_side_call
from ale.testing.scenario import scenario
from ale.testing.subject import Subject
from ale.trajectory import Score

ENTROPY = 0.5
"""Of every token with loss, in nats: so it is of any number of them, in the mean."""
TASKS = [Task(id=f"task-{i}", instruction="Do it.", tests=TaskTests(command="true")) for i in range(3)]


@asynccontextmanager
async def opened(subject: Subject) -> AsyncIterator[Algorithm]:
    """The algorithm, started."""
    async with subject.build() as algorithm:
        yield algorithm


def two_groups() -> list[Any]:
    """Two tasks, four rollouts each, with and without success; one of several contexts, with a replayed beginning."""
    second = [replace(t, id=f"u{i}", task_id="task-h", group="h") for i, t in enumerate(mixed_group(3))]
    return [*mixed_group(4), *second, two_contexts(9, reward=1.0, group="h")]


def by_sequence(batch: TrainBatch) -> list[tuple[tuple[int, ...], dict[int, tuple[float, int, int]]]]:
    """The sequences of a batch: tokens, and of each that carries loss, by its place, its chunk's return, position and count."""
    found, at, c = [], 0, batch.chunks
    for length in batch.lengths:
        ids = batch.chunk_ids[at : at + length]
        worth = {k: (float(c.returns[i]), int(c.position[i]), int(c.count[i])) for k, i in enumerate(ids) if i >= 0}
        found.append((tuple(int(x) for x in batch.token_ids[at : at + length]), worth))
        at += length
    return found


@scenario
async def test_plan_asks_for_group_size_rollouts_of_each_task(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        history = RolloutHistory(step=1, seed=1)
        requests = algorithm.plan(TASKS, history)
        assert requests, "plan() must ask for rollouts"
        assert algorithm.group_size >= 1, "group_size is at least 1"
        assert {r.task.id for r in requests} <= {t.id for t in TASKS}, (
            "plan() must ask for rollouts of the tasks it was given"
        )
        assert len({r.seed for r in requests}) == len(requests), "every rollout must have a seed of its own"
        for request in requests:
            others = {r.task.id for r in requests if r.group == request.group}
            assert others == {request.task.id}, f"a group must hold one task; '{request.group}' holds {others}"
        key = [(r.task.id, r.group, r.seed, r.start_chunk) for r in requests]
        assert key == [(r.task.id, r.group, r.seed, r.start_chunk) for r in algorithm.plan(TASKS, history)], (
            "plan() must give the same requests for the same tasks and history"
        )
        later = {r.seed for r in algorithm.plan(TASKS, replace(history, step=2))}
        assert not later & {r.seed for r in requests}, "another step must have other seeds"


@scenario
async def test_rollouts_start_on_the_path_of_an_expert_of_their_task_or_at_the_beginning(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        uses = algorithm.wants_experts(algorithm.config)
        assert uses in ("no", "welcome", "needed"), f"wants_experts() is no, welcome or needed, not {uses!r}"
        known = {TASKS[i].id: [replace(trajectory(i, reward=1.0, chunks=3 + i), task_id=TASKS[i].id)] for i in (0, 1)}
        history = RolloutHistory(step=1, seed=1, experts=known)
        for _ in range(3):
            requests = algorithm.plan(TASKS, history)
            again = algorithm.plan(TASKS, history)
            assert requests == again, "plan() must give the same requests for the same tasks, history and experts"
            for r in requests:
                where = f"a rollout of '{r.task.id}' that starts after {r.start_chunk} chunks"
                if r.expert is None:
                    assert r.start_chunk == 0, f"{where} has no expert to replay them from"
                    continue
                assert uses != "no", f"{where} has an expert, but the algorithm says that it makes no use of experts"
                assert r.expert.task_id == r.task.id, f"{where} replays an expert of '{r.expert.task_id}'"
                chunks = len(r.expert.chunks)
                assert 0 <= r.start_chunk < chunks, f"{where} leaves nothing to the policy: its expert has {chunks}"
            made = [
                replace(
                    trajectory(i, reward=float(i % 2), group=r.group, chunks=r.start_chunk + 1), id=r.group + str(i),
                    task_id=r.task.id, step=history.step, start_chunk=r.start_chunk,
                )
                for i, r in enumerate(requests)
            ]  # fmt: skip
            history = replace(history, step=history.step + 1, trajectories=made)


@scenario
async def test_a_batch_is_well_formed(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given = two_groups()
        batch = algorithm.batch(given)
        assert batch is not None, "rollouts with successes and failures must give something to train on"
        n, c = len(batch.token_ids), len(batch.chunks.returns)
        assert batch.lengths.sum() == n, f"lengths must add up to the tokens: {batch.lengths.sum()} and {n}"
        assert len(batch.chunk_ids) == len(batch.engine_logprobs) == n, (
            "chunk_ids and engine_logprobs have an entry a token"
        )
        assert len(batch.trajectory) == len(batch.lengths), "trajectory has an entry a sequence"
        assert (np.diff(batch.trajectory) >= 0).all(), (
            "trajectory indices must not fall: sequences of one stay together"
        )
        assert batch.chunk_ids.min() >= -1, "chunk_ids are -1 or a row of chunks"
        assert batch.chunk_ids.max() < c, "chunk_ids are -1 or a row of chunks"
        assert (batch.engine_logprobs[batch.chunk_ids < 0] == 0).all(), "a token without loss has engine_logprobs 0"
        assert math.isfinite(batch.normalizer), "the normalizer must be finite"
        assert batch.normalizer > 0, f"the normalizer must be above 0, not {batch.normalizer}"
        for field in fields(batch.chunks):
            assert len(getattr(batch.chunks, field.name)) == c, f"chunks.{field.name} must have an entry a chunk"
        assert np.isfinite(batch.chunks.returns).all(), "returns must be finite"


@scenario
async def test_only_tokens_that_the_policy_sampled_carry_loss(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given = two_groups()
        batch = algorithm.batch(given)
        assert batch is not None
        sequences = [
            (s.token_ids, {k for chunk in t.chunks if chunk.sequence == i for k in range(chunk.start, chunk.end)})
            for t in given
            for i, s in enumerate(t.sequences)
        ]
        for tokens, trained in by_sequence(batch):  # what follows the last trained token may be left out
            allowed = [inside for ids, inside in sequences if ids[: len(tokens)] == tokens]
            assert allowed, "a batch must hold the trajectories' sequences, token for token"
            assert any(set(trained) <= inside for inside in allowed), (
                "tokens outside chunks (prompt, tool output) must carry no loss"
            )


@scenario
async def test_a_side_call_carries_no_loss_and_is_no_step(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given, calling = two_groups(), with_side_call(17, reward=1.0)
        without = algorithm.batch([*given, trajectory(17, reward=1.0)])
        beside = algorithm.batch([*given, calling])
        assert without is not None
        assert beside is not None
        title = calling.sequences[1].token_ids
        asides = [s for s in by_sequence(beside) if s[0] == title[: len(s[0])]]
        assert not any(trained for _, trained in asides), (
            "the answer to a side call (a title, a summary) must carry no loss: train on Trajectory.turns, not on all chunks"
        )
        assert [s for s in by_sequence(beside) if s not in asides] == by_sequence(without), (
            "a side call is no step: returns, positions and counts must be as without it, of Trajectory.turns alone"
        )


@scenario
async def test_a_rollout_without_a_reward_is_not_one_of_nothing(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given, lost = two_groups(), unscored(23)
        without, beside = algorithm.batch(given), algorithm.batch([*given, lost])
        assert without is not None
        assert beside is not None
        same = [s for s in by_sequence(beside) if s[0] != lost.sequences[0].token_ids[: len(s[0])]]
        assert same == by_sequence(without), "a rollout whose sandbox was lost must change nothing for the others"
        turned = algorithm.batch([replace(t, reward=Score(float(not t.passed), not t.passed)) for t in given])
        if turned is None or by_sequence(turned) != same:  # it learns from rewards
            assert len(same) == len(beside.lengths), "a rollout without a reward must carry no loss"


@scenario
async def test_nothing_to_learn_from_is_no_batch(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        assert algorithm.batch([]) is None, "batch() of no trajectories must be None"
        empty = replace(trajectory(0, reward=0.0), chunks=())
        assert algorithm.batch([empty]) is None, "batch() of trajectories without chunks must be None"


@scenario
async def test_batch_changes_nothing_and_repeats_itself(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given = two_groups()
        kept = copy.deepcopy(given)
        first, second = algorithm.batch(given), algorithm.batch(given)
        assert given == kept, "batch() must not change the trajectories"
        assert first is not None
        assert second is not None
        for name in ("token_ids", "chunk_ids", "engine_logprobs"):
            assert np.array_equal(getattr(first, name), getattr(second, name)), (
                f"batch() must give the same {name} each time"
            )


def inputs(batch: TrainBatch, shift: float = 0.0) -> tuple[LossInput, Any]:
    """What a trainer would hand to the loss, as float64 tensors; and the tensor that carries the gradient."""
    torch = pytest.importorskip("torch", reason="a loss needs tensors to work on")
    trained = batch.chunk_ids >= 0
    old = torch.from_numpy(batch.engine_logprobs[trained].astype(np.float64))
    logprobs = (old - shift).requires_grad_(True)
    c = batch.chunks
    tensors = ChunkTensors(*(torch.from_numpy(getattr(c, f.name)) for f in fields(ChunkTensors)))
    ids = torch.from_numpy(batch.chunk_ids[trained])
    entropy = torch.full_like(old, ENTROPY)
    return LossInput(logprobs, entropy, old, old, ids, tensors, batch.normalizer, old - 0.1), logprobs


@scenario
async def test_the_loss_and_its_gradient_are_finite(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        batch = algorithm.batch(two_groups())
        assert batch is not None
        for shift in (0.0, 0.3, 30.0):
            given, logprobs = inputs(batch, shift)
            out = algorithm.loss(given)
            assert out.loss.numel() == 1, "the loss must be a scalar"
            out.loss.backward()
            gradient = logprobs.grad.numpy()
            assert math.isfinite(float(out.loss.detach())), f"the loss must be finite (policy {shift} nats away)"
            assert np.isfinite(gradient).all(), f"the gradient must be finite (policy {shift} nats away)"
            if shift == 0.0:
                assert np.abs(gradient).max() > 0, "on-policy rollouts with success and failure must give a gradient"
            for name, value in [*out.sums.items(), *out.maxima.items()]:
                assert not getattr(value, "requires_grad", False), f"sums['{name}'] must be detached"
                assert math.isfinite(float(value)), f"sums['{name}'] must be finite"


@scenario
async def test_a_batch_that_teaches_nothing_is_none(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        for reward in (0.0, 1.0):
            alike = [trajectory(i, reward=reward) for i in range(4)]
            batch = algorithm.batch(alike)
            if batch is not None:
                given, logprobs = inputs(batch)
                algorithm.loss(given).loss.backward()
                assert float(logprobs.grad.abs().max()) > 0, (
                    f"where every rollout has the reward {reward:g}, batch() gave one that carries no gradient: it must be None"
                )


@scenario
async def test_micro_batches_add_up_to_the_batch(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        batch = algorithm.batch(two_groups())
        assert batch is not None
        given, logprobs = inputs(batch, 0.2)
        whole = algorithm.loss(given)
        whole.loss.backward()
        ends = np.cumsum(np.add.reduceat(batch.chunk_ids >= 0, np.cumsum([0, *batch.lengths[:-1]])))
        parts: list[tuple[float, Any]] = []
        last = len(batch.lengths) - 1
        begin = 0
        for s, end in enumerate(ends):
            if s < last and batch.trajectory[s] == batch.trajectory[s + 1]:
                continue  # the sequences of one trajectory stay together
            if int(end) == begin:
                continue  # nothing in it carries loss
            cut, cut_logprobs = inputs(batch, 0.2)
            piece = replace(cut, **{
                name: getattr(cut, name)[begin:end]
                for name in ("logprobs", "entropy", "old_logprobs", "engine_logprobs", "reference_logprobs", "chunk_ids")
            })  # fmt: skip
            out = algorithm.loss(piece)
            out.loss.backward()
            parts.append((float(out.loss.detach()), cut_logprobs.grad))
            begin = int(end)
        total = sum(loss for loss, _ in parts)
        apart = abs(total - float(whole.loss.detach()))
        assert apart < 1e-6 * max(1.0, abs(total)), (
            f"the losses of micro-batches must add up to the batch's; they differ by {apart:.2g}"
        )
        gradient = sum(grad for _, grad in parts)
        apart = float((gradient - logprobs.grad).abs().max())
        assert apart < 1e-6, f"the gradients of micro-batches must add up to the batch's; they differ by {apart:.2g}"


def told(algorithm: Algorithm) -> dict[str, float]:
    """The metrics of an update, by what a trainer would return."""
    batch = algorithm.batch(two_groups())
    assert batch is not None
    out = algorithm.loss(inputs(batch)[0])
    totals = {name: float(value) for name, value in [*out.sums.items(), *out.maxima.items()]}
    usual = {"grad_norm": 1.0, "lr": 1e-3, "tokens": 1.0, "padding_waste": 0.0, "seconds": 0.1}
    return algorithm.metrics({**totals, "loss": float(out.loss.detach()), **usual})


@scenario
async def test_a_mean_entropy_is_one_over_the_tokens_with_loss(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        mean = told(algorithm).get("entropy", ENTROPY)
        assert abs(mean - ENTROPY) < 1e-6, (
            f"the metric 'entropy', which rl.min_entropy is compared with, must be the mean over the tokens with loss: "
            f"{ENTROPY} where each has {ENTROPY}, not {mean:g}"
        )


@scenario
async def test_metrics_are_plain_numbers(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        for name, value in told(algorithm).items():
            assert isinstance(name, str), "metrics have names"
            assert isinstance(value, float | int), f"the metric '{name}' must be a number, not {type(value).__name__}"
        if algorithm.reference:
            assert "reference" in type(algorithm).needs(subject.config).get("trainer", ()), (
                "an algorithm with reference=True must name it in needs(): {'trainer': ['reference']}"
            )
        assert algorithm.old_logprobs in ("recompute", "engine", "none"), "old_logprobs is recompute, engine or none"
