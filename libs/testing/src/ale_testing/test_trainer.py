"""These tests check a trainer's log-probabilities, that its updates are the same however a batch is split, that it
publishes weights, and that it saves and restores its state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ale.errors import AleError, TrainerError
from ale.specs.engine import MemoryTicket
from ale.specs.trainer import ChunkTable, Loss, LossInput, LossOutput, TrainBatch, TrainerBackend
from ale_testing.async_tests import async_test, cancelled, close, fails_with
from ale_testing.function_loss import FunctionLoss
from ale_testing.plugin_under_test import Subject
from ale_testing.sample_batches import mixed_group, pack_trajectories, pair_contexts
from ale_testing.tiny_model import write_tiny_model


@asynccontextmanager
async def loaded(subject: Subject, seed: int = 0) -> AsyncIterator[TrainerBackend]:
    """A trainer on the kit's tiny model."""
    folder = subject.folder / f"tiny-{seed}"
    write_tiny_model(folder, seed)
    async with subject.build() as trainer:
        await trainer.load(folder)
        yield trainer


def batch(n: int = 6, order: list[int] | None = None) -> TrainBatch:
    """A packed batch with positive and negative chunks."""
    return pack_trajectories(mixed_group(n), order)


def likelihood(inputs: LossInput) -> LossOutput:
    """Minus the mean log-probability of the trained tokens; made of operators alone, so that any tensors will do."""
    loss = -inputs.logprobs.sum() / inputs.normalizer
    sums = {"trained": (inputs.chunk_ids >= 0).sum(), "untrained": (inputs.chunk_ids < 0).sum()}
    return LossOutput(loss, {**sums, "entropy": inputs.entropy.sum()})


@dataclass(frozen=True)
class Looking(Loss):
    """The likelihood, which leaves a line in a file for each micro-batch: a trainer may call it in another process."""

    file: Path

    def __call__(self, inputs: LossInput) -> LossOutput:
        reference = inputs.reference_logprobs
        line = {
            "chunk_ids": inputs.chunk_ids.tolist(),
            "trajectories": sorted({int(t) for t in inputs.chunks.trajectory[inputs.chunk_ids]}),
            "entropy_has_gradient": bool(getattr(inputs.entropy, "requires_grad", False)),
            "normalizer": float(inputs.normalizer),
            "reference_normalizer": inputs.reference_normalizer,
            "reference_logprobs": None if reference is None else [float(x) for x in reference],
        }
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return likelihood(inputs)

    def read_inputs(self) -> list[dict[str, Any]]:
        """What it was shown. Ranks that share each layer are each shown the same: that counts once."""
        return [json.loads(line) for line in dict.fromkeys(self.file.read_text().splitlines())]


def broken(inputs: LossInput) -> LossOutput:
    """A loss that is not a number."""
    good = likelihood(inputs)
    return LossOutput(good.loss * float("nan"), good.sums)


def steep(inputs: LossInput) -> LossOutput:
    """A loss of 0 whose gradient is not a number: that of a root at 0."""
    good = likelihood(inputs)
    return LossOutput((good.loss * 0) ** 0.5, good.sums)


def still(inputs: LossInput) -> LossOutput:
    """A loss whose gradient is 0 everywhere."""
    good = likelihood(inputs)
    return LossOutput(good.loss * 0, good.sums)


LIKELIHOOD, BROKEN, STEEP, STILL = map(FunctionLoss, (likelihood, broken, steep, still))


def every_next_token(vocabulary: int) -> TrainBatch:
    """A sequence for each token of the vocabulary, alike but for the last token, which alone carries loss."""
    ones, rows = np.ones(vocabulary, np.int64), np.arange(vocabulary, dtype=np.int64)
    tokens = np.stack([5 * ones, 9 * ones, 7 * ones, rows], 1).reshape(-1)
    ids = np.stack([-ones, -ones, -ones, rows], 1).reshape(-1)
    table = ChunkTable(rows, 0 * rows, ones, np.ones(vocabulary, np.float32), np.ones(vocabulary, np.bool_))
    zeros = np.zeros(len(tokens), np.float32)
    return TrainBatch(tokens, 4 * ones, rows, ids, zeros, table, normalizer=float(vocabulary), old_logprobs=zeros)


async def weights_in_memory(trainer: TrainerBackend, subject: Subject) -> Mapping[str, Any]:
    """Weights of a trainer that publishes them in memory; none of another."""
    if "memory" not in subject.transports:
        return {}
    policy = await trainer.publish("memory", subject.folder / "unused")
    assert isinstance(policy.ticket, MemoryTicket), "the transport 'memory' has a MemoryTicket"
    assert policy.ticket.weights, "a MemoryTicket holds the weights"
    return policy.ticket.weights


def trained_mean(logprobs: Any, of: TrainBatch) -> float:
    """Mean log-probability of the tokens that carry loss."""
    return float(np.asarray(logprobs)[of.chunk_ids >= 0].mean())


@async_test
async def test_logprobs_are_returned_for_the_tokens_that_carry_loss(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        found = await trainer.logprobs(given)
        assert found.shape == given.token_ids.shape, (
            f"one log-probability a token, shape {given.token_ids.shape}, not {found.shape}"
        )
        assert found.dtype == np.float32, f"float32, not {found.dtype}"
        trained = given.chunk_ids >= 0
        assert np.isfinite(found[trained]).all(), "log-probabilities must be finite"
        assert (found[trained] < 0).all(), "log-probabilities of sampled tokens must be below 0"
        assert (found[~trained] == 0).all(), "tokens without loss have 0"
        again = await trainer.logprobs(given)
        assert np.abs(found - again).max() < 1e-5, "logprobs must not change what it is asked of"


@async_test
async def test_a_logprob_depends_only_on_earlier_tokens(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        vocabulary = write_tiny_model(subject.folder / "tiny-0").vocab_size
        found = await trainer.logprobs(every_next_token(vocabulary))
        total = float(np.exp(found[found < 0].astype(np.float64)).sum())
        assert abs(total - 1) < 1e-3, (
            f"over all tokens that could stand in one place the probabilities must add up to 1, not {total:.4f}: each "
            "is given by the tokens before it alone"
        )


@async_test
async def test_logits_are_divided_by_the_batchs_temperature(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = every_next_token(write_tiny_model(subject.folder / "tiny-0").vocab_size)
        plain = (await trainer.logprobs(given))[given.chunk_ids >= 0].astype(np.float64)
        halved = (await trainer.logprobs(replace(given, temperature=2.0)))[given.chunk_ids >= 0]
        expected = plain / 2 - np.log(np.exp(plain / 2).sum())
        assert np.abs(halved - expected).max() < 1e-4, (
            "with TrainBatch.temperature 2 the log-probabilities are those of halved logits"
        )
        totals = await trainer.update(replace(given, temperature=2.0), LIKELIHOOD, lr=1e-3)
        assert abs(totals["loss"] + float(halved.sum()) / given.normalizer) < 1e-3, (
            "the loss of an update must see log-probabilities of logits divided by TrainBatch.temperature too"
        )


@async_test
async def test_the_loss_receives_whole_trajectories_and_the_batchs_normalizer(subject: Subject) -> None:
    loss = Looking(subject.folder / "seen")
    async with loaded(subject) as trainer:
        given = replace(pair_contexts(batch()), reference_normalizer=7.0)
        await trainer.update(given, loss, lr=1e-3)
        seen = loss.read_inputs()
        times = [t for part in seen for t in part["trajectories"]]
        assert sorted(times) == sorted(set(times)), "the sequences of one trajectory must stay in one micro-batch"
        found = {part["normalizer"] for part in seen}
        assert found == {given.normalizer}, f"normalizer is the batch's, {given.normalizer}, not {found}"
        assert not any(part["entropy_has_gradient"] for part in seen), (
            "LossInput.entropy must carry no gradient where the loss asks for none"
        )
        found = {part["reference_normalizer"] for part in seen}
        assert found == {7.0}, f"reference_normalizer is the batch's, 7.0, not {found}"


@async_test
async def test_how_sequences_are_packed_does_not_change_their_logprobs(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        order = [3, 0, 5, 1, 4, 2]
        whole, shuffled = await trainer.logprobs(batch()), await trainer.logprobs(batch(order=order))
        cut = np.split(whole, np.cumsum(batch().lengths)[:-1])
        expected = np.concatenate([cut[i] for i in order])
        assert np.abs(expected - shuffled).max() < 1e-4, (
            "a sequence's log-probabilities must not depend on its neighbours"
        )


@async_test
async def test_an_update_makes_trained_tokens_likelier(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        before = trained_mean(await trainer.logprobs(given), given)
        for _ in range(5):
            totals = await trainer.update(given, LIKELIHOOD, lr=1e-2)
        after = trained_mean(await trainer.logprobs(given), given)
        assert after > before + 0.01, (
            f"five updates must raise the likelihood of what they train on: {before:.4f} -> {after:.4f}"
        )
        missing = {"loss", "grad_norm", "lr", "tokens", "padding_waste", "seconds", "trained"} - set(totals)
        assert not missing, f"update() must return {', '.join(sorted(missing))}"
        assert totals["untrained"] == 0, "a loss must be shown the tokens that carry loss, and no other"
        assert totals["trained"] == (given.chunk_ids >= 0).sum(), "sums add up over micro-batches to those of the batch"
        assert abs(totals["lr"] - 1e-2) < 1e-12, "lr= must win over the configured rate, and be reported"


@async_test
async def test_weight_decay_shrinks_weights_without_a_gradient(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        before, first = await trainer.logprobs(given), await weights_in_memory(trainer, subject)
        entropy = (await trainer.update(given, STILL, lr=1e-2, weight_decay=0.0))["entropy"]
        assert np.abs(await trainer.logprobs(given) - before).max() < 1e-6, (
            "without gradient and with weight_decay=0 an update must change nothing"
        )
        await trainer.update(given, STILL, lr=1e-2, weight_decay=50.0)  # to half of what they were
        decayed, second = await trainer.logprobs(given), await weights_in_memory(trainer, subject)
        flatter = (await trainer.update(given, STILL, lr=1e-2, weight_decay=0.0))["entropy"]
        assert flatter > entropy + 1e-3, (
            f"weight_decay= must pull the weights towards 0, and the policy towards chance: entropy {entropy:.4f} -> "
            f"{flatter:.4f}"
        )
        for name, old in first.items():
            left = 0.5 if old.ndim >= 2 else 1.0
            assert abs(second[name] - left * old).max() < 1e-4, (
                f"lr 0.01 x weight_decay 50 leaves half of a matrix, and all of a vector: not so of {name}"
            )
        await trainer.update(given, STILL, lr=1e-3)  # any usual decay is next to nothing at this rate
        assert np.abs(await trainer.logprobs(given) - decayed).max() < 5e-3, (
            "weight_decay= must hold for that step alone"
        )


@async_test
async def test_an_update_does_not_depend_on_the_order_of_trajectories(subject: Subject) -> None:
    results = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
        async with loaded(subject) as trainer:
            totals = await trainer.update(batch(order=order), LIKELIHOOD, lr=1e-3)
            results.append((totals["loss"], totals["grad_norm"]))
    (loss, norm), (other_loss, other_norm) = results
    assert abs(loss - other_loss) < 1e-4 * abs(loss), f"the loss must not depend on the order: {loss} and {other_loss}"
    assert abs(norm - other_norm) < 1e-3 * norm, (
        f"the gradient must not depend on the order: norms {norm} and {other_norm}"
    )


@async_test
async def test_a_nan_loss_or_gradient_is_refused_and_changes_nothing(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        before = await trainer.logprobs(given)
        await fails_with(trainer.update(given, BROKEN), TrainerError, why="a loss that is not finite")
        await fails_with(trainer.update(given, STEEP), TrainerError, why="a gradient that is not finite")
        assert np.abs(await trainer.logprobs(given) - before).max() == 0, (
            "weights must be unchanged after a refused update"
        )
        await trainer.update(given, LIKELIHOOD, lr=1e-3)
        assert np.isfinite(await trainer.logprobs(given)).all(), "the next good update must work"


@async_test
async def test_metrics_named_as_maxima_are_combined_by_the_maximum(subject: Subject) -> None:
    def with_maximum(inputs: LossInput) -> LossOutput:
        return replace(likelihood(inputs), maxima={"lowest": inputs.logprobs.detach().max()})

    async with loaded(subject) as trainer:
        given = batch()
        found = (await trainer.logprobs(given))[given.chunk_ids >= 0].max()
        totals = await trainer.update(given, FunctionLoss(with_maximum), lr=1e-3)
        assert "lowest" in totals, "update() must return LossOutput.maxima too"
        assert abs(totals["lowest"] - found) < 1e-4, (
            f"of maxima the largest over all micro-batches counts: {found:.4f}, not {totals['lowest']:.4f}"
        )


@async_test
async def test_a_checkpoint_restores_the_saved_state(subject: Subject) -> None:
    given, folder = batch(), subject.folder / "saved"
    async with loaded(subject) as trainer:
        await trainer.update(given, LIKELIHOOD, lr=1e-2)
        await trainer.save(folder)
        expected = await trainer.logprobs(given)
        await trainer.update(given, LIKELIHOOD, lr=1e-2)
        further = await trainer.logprobs(given)
    assert (folder / "config.json").is_file(), "save() must write a Hugging Face folder"
    async with loaded(subject, seed=1) as fresh:
        await fresh.restore(folder)
        assert np.abs(await fresh.logprobs(given) - expected).max() < 1e-5, "restore() must bring the weights back"
        await fresh.update(given, LIKELIHOOD, lr=1e-2)
        apart = np.abs(await fresh.logprobs(given) - further).max()
        assert apart < 1e-3, f"restore() must bring the optimizer back too: the next update differs by {apart:.2g}"


@async_test
async def test_a_missing_checkpoint_is_an_error_message(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        before = await trainer.logprobs(given)
        empty = subject.folder / "empty"
        empty.mkdir(exist_ok=True)
        for folder in (subject.folder / "no-such-folder", empty):
            await fails_with(trainer.restore(folder), AleError, why=f"restore() of {folder.name}")
        assert np.abs(await trainer.logprobs(given) - before).max() < 1e-6, (
            "a refused restore() must leave the policy as it was"
        )


@async_test
async def test_a_damaged_checkpoint_is_an_error_message(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given, folder = batch(), subject.folder / "damaged"
        await trainer.save(folder)
        before = await trainer.logprobs(given)
        files = [p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".json", ".jinja", ".txt")]
        assert files, "save() must write weights and optimizer"
        for file in sorted(files, key=lambda p: -p.stat().st_size)[:2]:  # whatever they are called
            whole = file.read_bytes()
            file.write_bytes(whole[: len(whole) // 2])
            await fails_with(trainer.restore(folder), AleError, why=f"restore() where {file.name} is cut off")
            file.write_bytes(whole)
        assert np.abs(await trainer.logprobs(given) - before).max() < 1e-6, (
            "a refused restore() must leave the policy as it was"
        )
        await trainer.restore(folder)


@async_test
async def test_a_trainer_works_after_a_cancelled_call(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        for after_s in (0.0, 0.002, 0.02):
            await cancelled(trainer.update(given, LIKELIHOOD, lr=1e-3), after_s)
            await cancelled(trainer.logprobs(given), after_s)
        assert np.isfinite(await asyncio.wait_for(trainer.logprobs(given), 60)).all(), (
            "a cancelled update must not spoil the next call"
        )


@async_test
async def test_close_returns_during_an_update(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        busy = asyncio.ensure_future(trainer.update(batch(), LIKELIHOOD))
        await asyncio.sleep(0)
        await asyncio.wait_for(close(trainer), 60)
        done, _ = await asyncio.wait([busy], timeout=60)
        assert done, "an update must end when its trainer is closed"
        if not busy.cancelled():
            busy.exception()
