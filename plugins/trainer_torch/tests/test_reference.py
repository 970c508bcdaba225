"""The reference policy, and what a step tells beside sums."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ale.errors import TrainerError
from ale.specs.engine import MemoryTicket
from ale.specs.trainer import Loss, LossInput, LossOutput, TrainBatch
from ale_testing.function_loss import FunctionLoss
from ale_trainer_torch import TorchTrainer

ModelFolder = Callable[[str], Path]
Trainers = Callable[..., AbstractAsyncContextManager[TorchTrainer]]
Batches = Callable[..., TrainBatch]


async def weights_of(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    policy = await trainer.publish("memory", Path("unused"))
    assert isinstance(policy.ticket, MemoryTicket)
    return dict(policy.ticket.weights)


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "gemma2", "cohere"])
@pytest.mark.parametrize("checkpointing", [False, True])
async def test_the_reference_is_asked_as_the_policy_is_and_gives_the_very_same_numbers(
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    name: str,
    checkpointing: bool,
) -> None:
    batch = random_batch(3)
    how = {"micro_batch_tokens": 120, "logit_chunk": 5, "gradient_checkpointing": checkpointing, "lr": 1e-2}
    async with trainer(model_folder(name), **how) as t:
        before = await t.logprobs(batch)
        await t.load(model_folder(name), "reference")
        for _ in range(2):
            assert np.array_equal(await t.logprobs(batch, "reference"), before)
            await t.update(batch, likelihood_loss)
        assert not np.array_equal(await t.logprobs(batch), before)


async def test_a_reference_changes_nothing_for_the_policy(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    found = []
    for reference in (False, True):
        async with trainer(model_folder("qwen2")) as t:
            if reference:
                await t.load(model_folder("qwen2"), "reference")
            await t.update(random_batch(), likelihood_loss)
            found.append(await weights_of(t))
    assert all(torch.equal(found[0][name], value) for name, value in found[1].items())


async def test_a_checkpoint_without_a_reference_forgets_it(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, tmp_path: Path
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        await t.save(tmp_path / "without")
        await t.load(model_folder("qwen2"), "reference")
        await t.save(tmp_path / "with")
        await t.restore(tmp_path / "without")
        with pytest.raises(TrainerError, match="no reference policy yet"):
            await t.logprobs(random_batch(), "reference")
        await t.restore(tmp_path / "with")
        assert np.array_equal(await t.logprobs(random_batch(), "reference"), await t.logprobs(random_batch()))


async def test_a_step_whose_gradient_was_cut_says_so(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    for bound, cut in ((1e-6, 1.0), (1e6, 0.0)):
        async with trainer(model_folder("qwen2"), max_grad_norm=bound) as t:
            assert (await t.update(random_batch(), likelihood_loss))["grad_clipped"] == cut


async def test_of_maxima_the_largest_over_micro_batches_counts(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    def with_maximum(inputs: LossInput) -> LossOutput:
        return replace(likelihood_loss(inputs), maxima={"highest": inputs.logprobs.detach().max()})

    batch = random_batch()
    async with trainer(model_folder("qwen2"), micro_batch_tokens=1) as t:
        highest = (await t.logprobs(batch))[batch.chunk_ids >= 0].max()
        assert (await t.update(batch, FunctionLoss(with_maximum)))["highest"] == pytest.approx(float(highest), rel=1e-6)
