"""These tests check an algorithm's loss: its value adds up over micro-batches, and its metrics are right."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from ale.specs.algorithm import Algorithm
from ale.specs.trainer import ChunkTensors, Loss, LossInput, TrainBatch
from ale.trajectory import Trajectory
from ale_testing.async_tests import async_test
from ale_testing.plugin_under_test import Subject
from ale_testing.sample_batches import trajectory, two_groups
from ale_testing.test_algorithm import opened

ENTROPY = 0.5
"""Of every token with loss, in nats: so it is of any number of them, in the mean."""


def batch_of(algorithm: Algorithm) -> TrainBatch:
    """A batch as a run hands it to a trainer, whose policy is the engine's."""
    batch = complete(algorithm, two_groups())
    assert batch is not None, "rollouts with successes and failures must give something to train on"
    return batch


def complete(algorithm: Algorithm, rollouts: list[Trajectory]) -> TrainBatch | None:
    """The batch with what the trainer adds (log-probabilities, values), what `credit` makes of it, and the normalizers
    that the loss then gives it."""
    batch = algorithm.batch(rollouts)
    if batch is None:
        return None
    trained = (batch.chunk_ids >= 0).astype(np.float32)
    if algorithm.reference:
        batch = replace(batch, reference_logprobs=batch.engine_logprobs - np.float32(0.1) * trained)
    if algorithm.critic:
        batch = replace(batch, columns={**batch.columns, "values": np.float32(0.25) * trained})
    credited = algorithm.credit(batch, rollouts)
    assert np.array_equal(credited.chunk_ids, batch.chunk_ids), "Algorithm.credit must keep the tokens with loss"
    for name, column in credited.columns.items():
        assert column.shape == batch.token_ids.shape, f"the column '{name}' must have a number for each token"
        assert np.isfinite(column).all(), f"the column '{name}' must be finite"
    return normalize_batch(algorithm, credited)


def normalize_batch(algorithm: Algorithm, batch: TrainBatch) -> TrainBatch:
    """The batch with old log-probabilities, and with the normalizers that the loss then gives it."""
    made = algorithm.loss.normalize(replace(batch, old_logprobs=batch.engine_logprobs))
    for name in ("normalizer", "reference_normalizer"):
        z = getattr(made, name)
        assert z is None or (math.isfinite(z) and z > 0), f"Loss.normalize must set a {name} above 0, not {z}"
    assert np.array_equal(made.token_ids, batch.token_ids), "Loss.normalize must change nothing but the normalizers"
    assert np.array_equal(made.chunk_ids, batch.chunk_ids), "Loss.normalize must change nothing but the normalizers"
    return made


def inputs(batch: TrainBatch, loss: Loss, shift: float = 0.0) -> tuple[LossInput, Any]:
    """What a trainer would hand to the loss, as float64 tensors; and the tensor that carries the gradient."""
    torch = pytest.importorskip("torch", reason="a loss needs tensors to work on")
    trained = batch.chunk_ids >= 0
    old = torch.from_numpy(batch.engine_logprobs[trained].astype(np.float64))
    logprobs = (old - shift).requires_grad_(True)
    c = batch.chunks
    tensors = ChunkTensors(*(torch.from_numpy(getattr(c, f.name)) for f in fields(ChunkTensors)))
    ids = torch.from_numpy(batch.chunk_ids[trained])
    entropy = torch.full_like(old, ENTROPY).requires_grad_(loss.entropy_gradient)
    normalizers = batch.normalizer, batch.reference_normalizer
    columns = {name: torch.from_numpy(column[trained]) for name, column in batch.columns.items()}
    values = columns["values"].double().requires_grad_() if "values" in columns else None
    return LossInput(logprobs, entropy, old, old, ids, tensors, *normalizers, old - 0.1, columns, values), logprobs


def piece_of(given: LossInput, part: slice) -> LossInput:
    """A micro-batch of some of its tokens."""
    names = ("logprobs", "entropy", "old_logprobs", "engine_logprobs", "reference_logprobs", "chunk_ids", "values")
    pieces = {name: value[part] for name in names if (value := getattr(given, name)) is not None}
    return replace(given, **pieces, columns={name: column[part] for name, column in given.columns.items()})


@async_test
async def test_the_loss_and_its_gradient_are_finite(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        batch = batch_of(algorithm)
        for shift in (0.0, 0.3, 30.0):
            given, logprobs = inputs(batch, algorithm.loss, shift)
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


@async_test
async def test_the_loss_can_be_pickled_into_another_process(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        loss = algorithm.loss
        frozen = is_dataclass(loss) and type(loss).__dataclass_params__.frozen
        assert frozen, "the loss must be a frozen dataclass of settings"
        try:
            sent = pickle.loads(pickle.dumps(loss))
        except Exception as error:
            pytest.fail(f"the loss must be picklable, as a trainer may call it in another process: {error}")
        assert sent == loss == algorithm.loss, "the loss must be a value: equal after pickling, and the same each time"
        batch = batch_of(algorithm)
        gradients = []
        for called in (loss, sent):
            given, logprobs = inputs(batch, called, 0.2)
            called(given).loss.backward()
            gradients.append(logprobs.grad)
        assert (gradients[0] == gradients[1]).all(), "a loss that was pickled must give the same gradient"


@async_test
async def test_a_batch_without_gradient_is_none(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        for reward in (0.0, 1.0):
            alike = [trajectory(i, reward=reward) for i in range(4)]
            batch = complete(algorithm, alike)
            if batch is not None:
                given, logprobs = inputs(batch, algorithm.loss)
                algorithm.loss(given).loss.backward()
                assert float(logprobs.grad.abs().max()) > 0, (
                    f"where every rollout has the reward {reward:g}, batch() gave one that carries no gradient: it "
                    "must be None"
                )


@async_test
async def test_micro_batches_add_up_to_the_batch(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        batch = batch_of(algorithm)
        given, logprobs = inputs(batch, algorithm.loss, 0.2)
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
            cut, cut_logprobs = inputs(batch, algorithm.loss, 0.2)
            out = algorithm.loss(piece_of(cut, slice(begin, int(end))))
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


def metrics_of_update(algorithm: Algorithm) -> dict[str, float]:
    """The metrics of an update, by what a trainer would return."""
    out = algorithm.loss(inputs(batch_of(algorithm), algorithm.loss)[0])
    totals = {name: float(value) for name, value in [*out.sums.items(), *out.maxima.items()]}
    usual = {"grad_norm": 1.0, "lr": 1e-3, "tokens": 1.0, "padding_waste": 0.0, "seconds": 0.1}
    return algorithm.loss.metrics({**totals, "loss": float(out.loss.detach()), **usual})


@async_test
async def test_a_mean_entropy_is_one_over_the_tokens_with_loss(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        mean = metrics_of_update(algorithm).get("entropy", ENTROPY)
        assert abs(mean - ENTROPY) < 1e-6, (
            f"the metric 'entropy', which rl.min_entropy is compared with, must be the mean over the tokens with loss: "
            f"{ENTROPY} where each has {ENTROPY}, not {mean:g}"
        )


@async_test
async def test_metrics_are_plain_numbers(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        for name, value in metrics_of_update(algorithm).items():
            assert isinstance(name, str), "metrics have names"
            assert isinstance(value, float | int), f"the metric '{name}' must be a number, not {type(value).__name__}"
        assert algorithm.old_logprobs in ("recompute", "engine", "none"), "old_logprobs is recompute, engine or none"
