"""These tests check a trainer's value head: its values, that a loss trains it, and that it is the trainer's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ale.specs.trainer import LossInput, LossOutput, TrainBatch
from ale_testing.async_tests import async_test
from ale_testing.function_loss import FunctionLoss
from ale_testing.plugin_under_test import Subject
from ale_testing.test_trainer import batch, likelihood, loaded, weights_in_memory

needs_values = pytest.mark.ale_needs.with_args("values")


def with_targets(of: TrainBatch) -> TrainBatch:
    """The batch with a target for each token with loss, 1 or -1, by its place in the sequence."""
    trained = of.chunk_ids >= 0
    targets = np.where(trained, np.where(np.arange(len(trained)) % 2, 1.0, -1.0), 0.0).astype(np.float32)
    return replace(of, columns={"targets": targets})


def squared_error(inputs: LossInput) -> LossOutput:
    """The mean squared error of the values."""
    error = (inputs.values - inputs.columns["targets"]) ** 2
    return LossOutput(error.sum() / inputs.normalizer, likelihood(inputs).sums)


SQUARED_ERROR = FunctionLoss(squared_error)


@needs_values
@async_test
async def test_values_are_those_of_tokens_with_loss_however_the_batch_is_ordered(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = with_targets(batch())
        for _ in range(5):
            await trainer.update(given, SQUARED_ERROR, lr=1e-2)
        values = await trainer.values(given)
        assert values.shape == given.token_ids.shape, "values() must give a number for each token"
        assert values.dtype == np.float32, f"values() must give float32, not {values.dtype}"
        assert np.isfinite(values).all(), "values must be finite"
        assert not values[given.chunk_ids < 0].any(), "the value of a token without loss must be 0"
        order = [5, 3, 1, 0, 2, 4]
        turned = batch(order=order)
        other = await trainer.values(turned)
        expected, found = (np.split(v, np.cumsum(b.lengths)[:-1]) for v, b in ((values, given), (other, turned)))
        owners = given.trajectory.tolist(), turned.trajectory.tolist()
        for at, owner in enumerate(owners[1]):
            nth = owners[1][:at].count(owner)
            same = [i for i, o in enumerate(owners[0]) if o == order[owner]][nth]
            apart = float(np.abs(found[at] - expected[same]).max())
            assert apart < 1e-4, f"a sequence's values must not depend on the others; they differ by {apart:.2g}"


@needs_values
@async_test
async def test_a_loss_of_values_trains_the_value_head(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = with_targets(batch())
        first = (await trainer.update(given, SQUARED_ERROR, lr=1e-2))["loss"]
        for _ in range(20):
            last = (await trainer.update(given, SQUARED_ERROR, lr=1e-2))["loss"]
        assert last < 0.9 * first, (
            f"20 updates on one batch must lower the error of the values: {first:.3f} -> {last:.3f}"
        )


@needs_values
@async_test
async def test_a_checkpoint_has_the_value_head_and_published_weights_have_not(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = with_targets(batch())
        for _ in range(3):
            await trainer.update(given, SQUARED_ERROR, lr=1e-2)
        before = await trainer.values(given)
        await trainer.save(subject.folder / "with-values")
        await trainer.update(given, SQUARED_ERROR, lr=1e-2)
        assert np.abs(await trainer.values(given) - before).max() > 0, "an update must change the values"
        await trainer.restore(subject.folder / "with-values")
        apart = float(np.abs(await trainer.values(given) - before).max())
        assert apart < 1e-5, f"restore must bring the values back; they differ by {apart:.2g}"
        strange = [name for name in await weights_in_memory(trainer, subject) if "value" in name]
        assert not strange, f"engines must not get the value head: {', '.join(strange)}"
