"""Updates: what a step does, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ale.errors import ConfigError, TrainerError
from ale.specs.engine import MemoryTicket
from ale.specs.trainer import Loss, LossInput, LossOutput, TrainBatch
from ale_testing.function_loss import FunctionLoss
from ale_train.batches import select
from ale_trainer_torch import TorchTrainer
from ale_trainer_torch.learner import Learner
from ale_trainer_torch.optimizer import Optimization

ModelFolder = Callable[[str], Path]
Trainers = Callable[..., AbstractAsyncContextManager[TorchTrainer]]
Batches = Callable[..., TrainBatch]


async def weights_of(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    policy = await trainer.publish("memory", Path("unused"))
    assert isinstance(policy.ticket, MemoryTicket)
    return dict(policy.ticket.weights)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def squared_error(inputs: LossInput) -> LossOutput:
    """Looks across each trajectory: the square of its summed log-probability."""
    owner = inputs.chunks.trajectory[inputs.chunk_ids]
    sums = torch.zeros(int(owner.max()) + 1).index_add_(0, owner, inputs.logprobs)
    return LossOutput((sums / 30).square().sum() / inputs.normalizer, {})


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "cohere"])
async def test_the_loss_falls(
    model_folder: ModelFolder, trainer: Trainers, name: str, random_batch: Batches, likelihood_loss: Loss
) -> None:
    batch = random_batch()
    async with trainer(model_folder(name), lr=1e-2) as t:
        losses = [(await t.update(batch, likelihood_loss))["loss"] for _ in range(12)]
        after = await t.logprobs(batch)
    assert losses[-1] < losses[0] - 0.05
    assert -after.sum() / batch.normalizer < losses[0]


def gradient(folder: Path, batch: TrainBatch, loss: Loss, **how: Any) -> torch.Tensor:
    """The gradient of the batch, all parameters end to end."""
    settings = {"micro_batch_tokens": 16384, "logit_chunk": 1024, "packing": True, **how}
    learner = Learner(folder, torch.device("cpu"), Optimization(1e-3, (0.9, 0.95), 1e-8, 0.0, 1e9, **settings))
    learner.accumulate(batch, loss)
    return torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "gemma2", "window"])
@pytest.mark.parametrize("across", [False, True])
def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(
    model_folder: ModelFolder,
    name: str,
    across: bool,
    random_batch: Batches,
    likelihood_loss: Loss,
) -> None:
    batch, folder = random_batch(1), model_folder(name)
    loss = FunctionLoss(squared_error) if across else likelihood_loss
    expected = gradient(folder, batch, loss, micro_batch_tokens=1, packing=False, logit_chunk=None)
    assert expected.abs().max() > 0.01
    for packing in (True, False):
        for budget, chunk in ((1, 1), (90, 7), (100_000, 1024), (100_000, None)):
            how = {"micro_batch_tokens": budget, "packing": packing, "logit_chunk": chunk}
            found = gradient(folder, batch, loss, **how)
            assert torch.allclose(found, expected, rtol=0, atol=1e-6), how
    turned = select(batch, [3, 0, 5, 1, 4, 2])
    assert torch.allclose(gradient(folder, turned, loss), expected, rtol=0, atol=1e-6)
    ranks = [gradient(folder, select(batch, share), loss) for share in ([0, 4], [1], [2, 3, 5])]
    assert torch.allclose(sum(ranks, torch.zeros(())), expected, rtol=0, atol=1e-6)


async def test_logprobs_do_not_depend_on_padding_and_are_zero_without_loss(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches
) -> None:
    batch = random_batch(2)
    found = []
    for budget, packing in ((1, True), (100_000, True), (100_000, False)):
        async with trainer(model_folder("qwen2"), micro_batch_tokens=budget, packing=packing) as t:
            found.append(await t.logprobs(batch))
    assert np.allclose(found[0], found[2], atol=1e-5)
    assert found[0].shape == batch.token_ids.shape
    assert np.allclose(found[0], found[1], atol=1e-5)
    assert (found[0][batch.chunk_ids < 0] == 0).all()
    assert (found[0][batch.chunk_ids >= 0] < 0).all()


async def test_an_update_sees_the_very_numbers_that_logprobs_gave(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    def identical(inputs: LossInput) -> LossOutput:
        assert torch.equal(inputs.logprobs.detach(), inputs.old_logprobs)
        return likelihood_loss(inputs)

    batch = random_batch(3)
    # gpt2's own configuration has dropout: it must be off.
    for name in ("gpt2", "gemma2"):
        async with trainer(model_folder(name), micro_batch_tokens=120, logit_chunk=5) as t:
            await t.update(replace(batch, old_logprobs=await t.logprobs(batch)), FunctionLoss(identical))


async def test_a_batch_without_old_logprobs_says_so_to_the_loss(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    def absent(inputs: LossInput) -> LossOutput:
        assert inputs.old_logprobs is None
        return likelihood_loss(inputs)

    async with trainer(model_folder("qwen2")) as t:
        await t.update(random_batch(), FunctionLoss(absent))


async def test_metrics_tell_what_the_contract_promises(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    batch = random_batch()
    async with trainer(model_folder("qwen2"), micro_batch_tokens=80, lr=3e-4) as t:
        metrics = await t.update(batch, likelihood_loss)
        other = await t.update(batch, likelihood_loss, lr=1e-5)
    assert metrics["n"] == (batch.chunk_ids >= 0).sum()
    assert metrics["tokens"] == len(batch.token_ids)
    assert metrics["lr"] == 3e-4
    assert other["lr"] == 1e-5
    assert metrics["padding_waste"] == 0
    assert metrics["seconds"] > 0
    assert metrics["grad_norm"] > 0
    async with trainer(model_folder("qwen2"), packing=False) as t:
        assert 0 < (await t.update(batch, likelihood_loss))["padding_waste"] < 0.3


async def test_weight_decay_is_that_of_the_step_or_the_configured_one_and_of_matrices_alone(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches
) -> None:
    def still(inputs: LossInput) -> LossOutput:
        return LossOutput(inputs.logprobs.sum() * 0, {})

    batch = random_batch()
    async with trainer(model_folder("qwen2"), lr=0.1, weight_decay=1.0) as t:
        weights = await weights_of(t)
        for given, left in ((None, 0.9), (5.0, 0.5), (0.0, 1.0), (None, 0.9)):
            before = {name: value.clone() for name, value in weights.items()}
            await t.update(batch, FunctionLoss(still), weight_decay=given)
            weights = await weights_of(t)
            for name, value in weights.items():
                expected = before[name] * (left if value.dim() >= 2 else 1.0)
                assert torch.allclose(value, expected, atol=1e-6), (name, given)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
async def test_a_loss_that_is_not_finite_leaves_weights_and_optimizer_alone(
    model_folder: ModelFolder, trainer: Trainers, bad: float, random_batch: Batches, likelihood_loss: Loss
) -> None:
    batch = random_batch()
    async with trainer(model_folder("qwen2")) as t:
        await t.update(batch, likelihood_loss)
        before = await weights_of(t)
        with pytest.raises(TrainerError, match="weights were left as they are"):
            await t.update(batch, FunctionLoss(lambda inputs: LossOutput(inputs.logprobs.sum() * bad, {})))
        assert same(await weights_of(t), before)
        expected = await t.update(batch, likelihood_loss)
    async with trainer(model_folder("qwen2")) as t:
        await t.update(batch, likelihood_loss)
        assert (await t.update(batch, likelihood_loss))["loss"] == expected["loss"]


async def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        before = await weights_of(t)
        with pytest.raises(TrainerError, match="gradient norm is"):
            # sqrt at 0: the value is finite, its slope is not.
            await t.update(random_batch(), FunctionLoss(lambda i: LossOutput((i.logprobs.sum() * 0).sqrt(), {})))
        assert same(await weights_of(t), before)


async def test_published_weights_are_copies_under_rising_versions(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    async with trainer(model_folder("qwen2"), lr=1e-2) as t:
        first = await weights_of(t)
        assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(first)
        kept = {k: v.clone() for k, v in first.items()}
        await t.update(random_batch(), likelihood_loss)
        second = await weights_of(t)
        assert same(first, kept)
        assert not same(second, kept)
        assert (await t.publish("memory", Path("unused"))).version == 3


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "window"])
async def test_recomputed_activations_give_the_same_step(
    model_folder: ModelFolder, trainer: Trainers, name: str, random_batch: Batches, likelihood_loss: Loss
) -> None:
    norms = []
    for recompute in (False, True):
        async with trainer(model_folder(name), gradient_checkpointing=recompute) as t:
            norms.append((await t.update(random_batch(), likelihood_loss))["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


async def test_the_event_loop_stays_free_during_an_update(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    ticks = 0
    async with trainer(model_folder("qwen2"), micro_batch_tokens=1) as t:
        update = asyncio.create_task(t.update(random_batch(trajectories=30), likelihood_loss))
        while not update.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await update
    assert ticks > 3


async def test_sequences_beyond_the_model_are_a_sentence(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    batch = random_batch()
    async with trainer(model_folder("gpt2")) as t:
        with pytest.raises(TrainerError, match="vocabulary: 300"):
            await t.update(replace(batch, token_ids=batch.token_ids + 400), likelihood_loss)


async def test_a_trainer_without_model_or_thread_says_what_is_missing(trainer: Trainers) -> None:
    async with trainer() as t:
        with pytest.raises(TrainerError, match="no model yet"):
            await t.publish("memory", Path("unused"))
    with pytest.raises(TrainerError, match="not running"):
        await t.load(Path("x"))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_the_start() -> None:
    from ale.specs.driver import DriverContext

    with pytest.raises(ConfigError, match=r"trainer\.device is 'cuda'"):
        TorchTrainer(TorchTrainer.Config(device="cuda"), DriverContext())
