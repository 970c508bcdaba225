"""The trainer contract: log-probabilities, updates that are exact however a batch is cut, weights out, state in and out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ale.errors import AleError, PluginError, TrainerError
from ale.specs.trainer import ChunkTable, LossInput, LossOutput, ScratchModel, TrainBatch, TrainerBackend
from ale.testing.batches import mixed_group, packed, paired
from ale.testing.scenario import cancelled, fails_with, scenario
from ale.testing.subject import Subject
from ale.testing.tiny_model import write_tiny_model

needs = pytest.mark.ale_needs


@asynccontextmanager
async def loaded(subject: Subject, seed: int = 0) -> AsyncIterator[TrainerBackend]:
    """A trainer on the kit's tiny model."""
    folder = subject.folder / f"tiny-{seed}"
    write_tiny_model(folder, seed)
    async with subject.build() as trainer:
        await trainer.load_model(folder)
        yield trainer


def batch(n: int = 6, order: list[int] | None = None) -> TrainBatch:
    """A packed batch with positive and negative chunks."""
    return packed(mixed_group(n), order)


def likelihood(inputs: LossInput) -> LossOutput:
    """Minus the mean log-probability of the trained tokens; made of operators alone, so that any tensors will do."""
    loss = -inputs.logprobs.sum() / inputs.normalizer
    sums = {"trained": (inputs.chunk_ids >= 0).sum(), "untrained": (inputs.chunk_ids < 0).sum()}
    return LossOutput(loss, {**sums, "entropy": inputs.entropy.sum()})


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


def every_next_token(vocabulary: int) -> TrainBatch:
    """A sequence for each token of the vocabulary, alike but for the last token, which alone carries loss."""
    ones, rows = np.ones(vocabulary, np.int64), np.arange(vocabulary, dtype=np.int64)
    tokens = np.stack([5 * ones, 9 * ones, 7 * ones, rows], 1).reshape(-1)
    ids = np.stack([-ones, -ones, -ones, rows], 1).reshape(-1)
    table = ChunkTable(rows, 0 * rows, ones, np.ones(vocabulary, np.float32), np.ones(vocabulary, np.bool_))
    zeros = np.zeros(len(tokens), np.float32)
    return TrainBatch(tokens, 4 * ones, rows, ids, zeros, table, normalizer=float(vocabulary), old_logprobs=zeros)


def trained_mean(logprobs: Any, of: TrainBatch) -> float:
    """Mean log-probability of the tokens that carry loss."""
    return float(np.asarray(logprobs)[of.chunk_ids >= 0].mean())


@scenario
async def test_logprobs_are_those_of_the_tokens_that_carry_loss(subject: Subject) -> None:
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


@scenario
async def test_a_tokens_logprob_is_given_by_the_tokens_before_it(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        vocabulary = write_tiny_model(subject.folder / "tiny-0").vocab_size
        found = await trainer.logprobs(every_next_token(vocabulary))
        total = float(np.exp(found[found < 0].astype(np.float64)).sum())
        assert abs(total - 1) < 1e-3, (
            f"over all tokens that could stand in one place the probabilities must add up to 1, not {total:.4f}: each is "
            "given by the tokens before it alone"
        )


@scenario
async def test_the_loss_is_shown_whole_trajectories_and_the_whole_batchs_normalizer(subject: Subject) -> None:
    seen: list[set[int]] = []
    entropies: list[bool] = []
    normalizers: set[float] = set()

    def looking(inputs: LossInput) -> LossOutput:
        out = likelihood(inputs)
        seen.append({int(t) for t in inputs.chunks.trajectory[inputs.chunk_ids]})
        entropies.append(bool(getattr(inputs.entropy, "requires_grad", False)))
        normalizers.add(float(inputs.normalizer))
        return out

    async with loaded(subject) as trainer:
        given = paired(batch())
        await trainer.update(given, looking, lr=1e-3)
        if not seen:
            return  # the loss was called in another process
        times = [t for part in seen for t in part]
        assert sorted(times) == sorted(set(times)), "the sequences of one trajectory must stay in one micro-batch"
        assert normalizers == {given.normalizer}, f"normalizer is the batch's, {given.normalizer}, not {normalizers}"
        assert not any(entropies), "LossInput.entropy must carry no gradient"


@scenario
async def test_how_sequences_are_packed_does_not_change_their_logprobs(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        order = [3, 0, 5, 1, 4, 2]
        whole, shuffled = await trainer.logprobs(batch()), await trainer.logprobs(batch(order=order))
        cut = np.split(whole, np.cumsum(batch().lengths)[:-1])
        expected = np.concatenate([cut[i] for i in order])
        assert np.abs(expected - shuffled).max() < 1e-4, (
            "a sequence's log-probabilities must not depend on its neighbours"
        )


@scenario
async def test_an_update_makes_trained_tokens_likelier(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        before = trained_mean(await trainer.logprobs(given), given)
        for _ in range(5):
            totals = await trainer.update(given, likelihood, lr=1e-2)
        after = trained_mean(await trainer.logprobs(given), given)
        assert after > before + 0.01, (
            f"five updates must raise the likelihood of what they train on: {before:.4f} -> {after:.4f}"
        )
        missing = {"loss", "grad_norm", "lr", "tokens", "padding_waste", "seconds", "trained"} - set(totals)
        assert not missing, f"update() must return {', '.join(sorted(missing))}"
        assert totals["untrained"] == 0, "a loss must be shown the tokens that carry loss, and no other"
        assert totals["trained"] == (given.chunk_ids >= 0).sum(), "sums add up over micro-batches to those of the batch"
        assert abs(totals["lr"] - 1e-2) < 1e-12, "lr= must win over the configured rate, and be reported"


@scenario
async def test_weight_decay_pulls_the_weights_towards_nothing_where_no_gradient_does(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        before, first = await trainer.logprobs(given), await trainer.publish()
        entropy = (await trainer.update(given, still, lr=1e-2, weight_decay=0.0))["entropy"]
        assert np.abs(await trainer.logprobs(given) - before).max() < 1e-6, (
            "without gradient and with weight_decay=0 an update must change nothing"
        )
        await trainer.update(given, still, lr=1e-2, weight_decay=50.0)  # to half of what they were
        decayed, second = await trainer.logprobs(given), await trainer.publish()
        flatter = (await trainer.update(given, still, lr=1e-2, weight_decay=0.0))["entropy"]
        assert flatter > entropy + 1e-3, (
            f"weight_decay= must pull the weights towards 0, and the policy towards chance: entropy {entropy:.4f} -> {flatter:.4f}"
        )
        if first.weights and second.weights:
            for name, old in first.weights.items():
                left = 0.5 if old.ndim >= 2 else 1.0
                assert abs(second.weights[name] - left * old).max() < 1e-4, (
                    f"lr 0.01 x weight_decay 50 leaves half of a matrix, and all of a vector: not so of {name}"
                )
        await trainer.update(given, still, lr=1e-3)  # any usual decay is next to nothing at this rate
        assert np.abs(await trainer.logprobs(given) - decayed).max() < 5e-3, (
            "weight_decay= must hold for that step alone"
        )


@scenario
async def test_an_update_is_the_same_in_whatever_order_trajectories_come(subject: Subject) -> None:
    results = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
        async with loaded(subject) as trainer:
            totals = await trainer.update(batch(order=order), likelihood, lr=1e-3)
            results.append((totals["loss"], totals["grad_norm"]))
    (loss, norm), (other_loss, other_norm) = results
    assert abs(loss - other_loss) < 1e-4 * abs(loss), f"the loss must not depend on the order: {loss} and {other_loss}"
    assert abs(norm - other_norm) < 1e-3 * norm, (
        f"the gradient must not depend on the order: norms {norm} and {other_norm}"
    )


@scenario
async def test_a_loss_that_is_no_number_is_refused_and_changes_nothing(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        before = await trainer.logprobs(given)
        await fails_with(trainer.update(given, broken), TrainerError, why="a loss that is not finite")
        await fails_with(trainer.update(given, steep), TrainerError, why="a gradient that is not finite")
        assert np.abs(await trainer.logprobs(given) - before).max() == 0, (
            "weights must be unchanged after a refused update"
        )
        await trainer.update(given, likelihood, lr=1e-3)
        assert np.isfinite(await trainer.logprobs(given)).all(), "the next good update must work"


@scenario
async def test_of_what_a_loss_calls_a_maximum_the_largest_is_returned(subject: Subject) -> None:
    def with_maximum(inputs: LossInput) -> LossOutput:
        return replace(likelihood(inputs), maxima={"lowest": inputs.logprobs.detach().max()})

    async with loaded(subject) as trainer:
        given = batch()
        found = (await trainer.logprobs(given))[given.chunk_ids >= 0].max()
        totals = await trainer.update(given, with_maximum, lr=1e-3)
        assert "lowest" in totals, "update() must return LossOutput.maxima too"
        assert abs(totals["lowest"] - found) < 1e-4, (
            f"of maxima the largest over all micro-batches counts: {found:.4f}, not {totals['lowest']:.4f}"
        )


@scenario
async def test_a_trainer_without_a_reference_policy_says_so(subject: Subject) -> None:
    if subject.can("reference"):
        return
    async with loaded(subject) as trainer:
        await fails_with(trainer.keep_reference(), PluginError, why="keep_reference() without the capability")
        await fails_with(trainer.reference_logprobs(batch()), PluginError, why="reference_logprobs() without it")


@needs("reference")
@scenario
async def test_the_reference_policy_stays_what_it_was(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        await fails_with(
            trainer.reference_logprobs(given), TrainerError, why="reference_logprobs() before keep_reference()"
        )
        first = await trainer.logprobs(given)
        await trainer.keep_reference()
        kept = await trainer.reference_logprobs(given)
        assert kept.dtype == np.float32, f"float32, not {kept.dtype}"
        assert np.abs(kept - first).max() < 1e-6, "the reference is the policy as it is when it is kept"
        await trainer.update(given, likelihood, lr=1e-2)
        assert np.abs(await trainer.reference_logprobs(given) - first).max() < 1e-6, (
            "an update must not change the reference"
        )
        moved = await trainer.logprobs(given)
        assert np.abs(moved - first).max() > 1e-4, "to keep a reference must not keep the policy from learning"
        await trainer.keep_reference()
        assert np.abs(await trainer.reference_logprobs(given) - moved).max() < 1e-6, "a later call replaces it"
        await trainer.load_model(subject.folder / "tiny-0")
        await fails_with(trainer.reference_logprobs(given), TrainerError, why="load_model() must forget the reference")


@needs("reference")
@scenario
async def test_a_loss_is_shown_the_references_logprobs(subject: Subject) -> None:
    seen: list[Any] = []

    def looking(inputs: LossInput) -> LossOutput:
        seen.append(inputs.reference_logprobs)
        return likelihood(inputs)

    async with loaded(subject) as trainer:
        given = batch()
        await trainer.keep_reference()
        kept = await trainer.reference_logprobs(given)
        filled = replace(given, reference_logprobs=kept)
        await trainer.update(filled, looking, lr=1e-3)
        if not seen:
            return  # the loss was called in another process
        assert all(part is not None for part in seen), "LossInput.reference_logprobs must be filled from the batch"
        found = sorted(float(x) for part in seen for x in part)
        expected = sorted(float(x) for x in kept[given.chunk_ids >= 0])
        assert found == expected, "a loss must be shown the batch's reference_logprobs of the tokens that carry loss"
        seen.clear()
        await trainer.update(given, looking, lr=1e-3)
        assert all(part is None for part in seen), "where the batch has no reference_logprobs the loss is shown none"


@needs("reference")
@scenario
async def test_a_checkpoint_holds_the_reference_policy(subject: Subject) -> None:
    given, folder = batch(), subject.folder / "saved-with-reference"
    async with loaded(subject) as trainer:
        await trainer.keep_reference()
        expected = await trainer.reference_logprobs(given)
        await trainer.update(given, likelihood, lr=1e-2)
        await trainer.save(folder)
    async with loaded(subject, seed=1) as fresh:
        await fresh.load(folder)
        apart = np.abs(await fresh.reference_logprobs(given) - expected).max()
        assert apart < 1e-5, f"load() must bring back the reference that was saved; it is {apart:.2g} apart"


@scenario
async def test_every_publish_is_a_new_version_with_weights(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        first = await trainer.publish()
        await trainer.update(batch(), likelihood, lr=1e-3)
        second = await trainer.publish()
        assert second.version > first.version >= 0, f"versions must rise: {first.version}, {second.version}"
        for policy in (first, second):
            assert policy.weights is not None or policy.path is not None, (
                "a PolicyVersion needs weights, a path, or both"
            )
        if subject.can("weights_in_memory"):
            assert first.weights, "a trainer with weights_in_memory must publish them"
            assert second.weights, "a trainer with weights_in_memory must publish them"
            assert any(bool((second.weights[name] != value).any()) for name, value in first.weights.items()), (
                "published weights are copies: an update must not change those of the version before"
            )
        elif second.path is not None:
            assert (second.path / "config.json").is_file(), "a published folder must be a Hugging Face model"
        await trainer.load_model(subject.folder / "tiny-0")
        again = await trainer.publish()
        assert again.version == first.version, f"load_model() must set the version back; publish() gave {again.version}"


@scenario
async def test_what_is_saved_is_what_is_loaded(subject: Subject) -> None:
    given, folder = batch(), subject.folder / "saved"
    async with loaded(subject) as trainer:
        await trainer.update(given, likelihood, lr=1e-2)
        await trainer.save(folder)
        expected = await trainer.logprobs(given)
        await trainer.update(given, likelihood, lr=1e-2)
        further = await trainer.logprobs(given)
    assert (folder / "config.json").is_file(), "save() must write a Hugging Face folder"
    async with loaded(subject, seed=1) as fresh:
        await fresh.load(folder)
        assert np.abs(await fresh.logprobs(given) - expected).max() < 1e-5, "load() must bring the saved weights back"
        await fresh.update(given, likelihood, lr=1e-2)
        apart = np.abs(await fresh.logprobs(given) - further).max()
        assert apart < 1e-3, f"load() must bring the optimizer back too: the next update differs by {apart:.2g}"


@scenario
async def test_a_folder_that_is_none_is_a_sentence(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        before = await trainer.logprobs(given)
        empty = subject.folder / "empty"
        empty.mkdir(exist_ok=True)
        for folder in (subject.folder / "no-such-folder", empty):
            await fails_with(trainer.load(folder), AleError, why=f"load() of {folder.name}")
        assert np.abs(await trainer.logprobs(given) - before).max() < 1e-6, (
            "a refused load() must leave the policy as it was"
        )


@scenario
async def test_a_damaged_checkpoint_is_a_sentence(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given, folder = batch(), subject.folder / "damaged"
        await trainer.save(folder)
        before = await trainer.logprobs(given)
        files = [p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".json", ".jinja", ".txt")]
        assert files, "save() must write weights and optimizer"
        for file in sorted(files, key=lambda p: -p.stat().st_size)[:2]:  # whatever they are called
            whole = file.read_bytes()
            file.write_bytes(whole[: len(whole) // 2])
            await fails_with(trainer.load(folder), AleError, why=f"load() of a folder whose {file.name} is cut off")
            file.write_bytes(whole)
        assert np.abs(await trainer.logprobs(given) - before).max() < 1e-6, (
            "a refused load() must leave the policy as it was"
        )
        await trainer.load(folder)


@scenario
async def test_cancelling_leaves_a_trainer_that_works(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        for after_s in (0.0, 0.002, 0.02):
            await cancelled(trainer.update(given, likelihood, lr=1e-3), after_s)
            await cancelled(trainer.logprobs(given), after_s)
        assert np.isfinite(await asyncio.wait_for(trainer.logprobs(given), 60)).all(), (
            "a cancelled update must not spoil the next call"
        )


@scenario
async def test_close_while_busy_ends(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        busy = asyncio.ensure_future(trainer.update(batch(), likelihood))
        await asyncio.sleep(0)
        await asyncio.wait_for(trainer.close(), 60)
        done, _ = await asyncio.wait([busy], timeout=60)
        assert done, "an update must end when its trainer is closed"
        if not busy.cancelled():
            busy.exception()


@needs("scratch")
@scenario
async def test_a_model_from_nothing_is_made_by_the_runs_seed(subject: Subject) -> None:
    shape = ScratchModel(hidden_size=32, layers=1, heads=2, kv_heads=1, vocab_size=320, max_length=128)
    found = []
    for i, seed in enumerate((1, 1, 2)):
        folder = subject.folder / f"scratch-{i}"
        write_tiny_model(folder / "donor").save(folder)
        async with subject.build(seed=seed) as trainer:
            await trainer.create_model(shape, folder)
            await trainer.load_model(folder)
            found.append(await trainer.logprobs(batch()))
    assert np.abs(found[0] - found[1]).max() == 0, "the same seed must make the same weights"
    assert np.abs(found[0] - found[2]).max() > 0, "another seed must make other weights"
