"""These tests check what a trainer does with policies: the reference stays, entropies can rise, weights go out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from ale.errors import AleError, TrainerError
from ale.specs.engine import FolderTicket
from ale.specs.trainer import Loss, LossInput, LossOutput
from ale_testing.async_tests import async_test, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.test_trainer import LIKELIHOOD, Looking, batch, likelihood, loaded, weights_in_memory


@dataclass(frozen=True)
class Bonus(Loss):
    """A loss that is lower, the higher the mean entropy."""

    entropy_gradient: bool = True

    def __call__(self, inputs: LossInput) -> LossOutput:
        good = likelihood(inputs)
        return LossOutput(-inputs.entropy.sum() / inputs.normalizer, good.sums)


@async_test
async def test_updates_do_not_change_the_reference_policy(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        await fails_with(trainer.logprobs(given, "reference"), TrainerError, why="logprobs() of a reference not loaded")
        first = await trainer.logprobs(given)
        await trainer.load(subject.folder / "tiny-0", "reference")
        kept = await trainer.logprobs(given, "reference")
        assert kept.dtype == np.float32, f"float32, not {kept.dtype}"
        assert np.abs(kept - first).max() < 1e-5, "the same folder must give the same log-probabilities as a reference"
        await trainer.update(given, LIKELIHOOD, lr=1e-2)
        assert np.abs(await trainer.logprobs(given, "reference") - kept).max() < 1e-6, (
            "an update must not change the reference"
        )
        moved = await trainer.logprobs(given)
        assert np.abs(moved - first).max() > 1e-4, "to hold a reference must not keep the policy from learning"
        await trainer.save(subject.folder / "moved")
        await trainer.load(subject.folder / "moved", "reference")
        assert np.abs(await trainer.logprobs(given, "reference") - moved).max() < 1e-5, "a later load() replaces it"
        assert np.abs(await trainer.logprobs(given) - moved).max() == 0, "a reference must leave the policy as it is"
        await fails_with(
            trainer.load(subject.folder / "no-such-folder", "reference"), AleError, why="a reference that is not there"
        )
        assert np.abs(await trainer.logprobs(given, "reference") - moved).max() < 1e-5, "the old one stays then"
        await trainer.load(subject.folder / "tiny-0")
        await fails_with(
            trainer.logprobs(given, "reference"), TrainerError, why="load() of a policy must forget the reference"
        )


@async_test
async def test_a_loss_receives_the_logprobs_of_the_reference(subject: Subject) -> None:
    with_reference, without = Looking(subject.folder / "with"), Looking(subject.folder / "without")
    async with loaded(subject) as trainer:
        given = batch()
        await trainer.load(subject.folder / "tiny-0", "reference")
        kept = await trainer.logprobs(given, "reference")
        await trainer.update(replace(given, reference_logprobs=kept), with_reference, lr=1e-3)
        seen = [part["reference_logprobs"] for part in with_reference.read_inputs()]
        assert all(part is not None for part in seen), "LossInput.reference_logprobs must be filled from the batch"
        found = sorted(x for part in seen for x in part)
        expected = sorted(float(x) for x in kept[given.chunk_ids >= 0])
        assert found == expected, "a loss must be shown the batch's reference_logprobs of the tokens that carry loss"
        await trainer.update(given, without, lr=1e-3)
        assert all(part["reference_logprobs"] is None for part in without.read_inputs()), (
            "where the batch has no reference_logprobs the loss is shown none"
        )


@async_test
async def test_a_checkpoint_holds_the_reference_policy(subject: Subject) -> None:
    given, folder = batch(), subject.folder / "saved-with-reference"
    async with loaded(subject) as trainer:
        await trainer.load(subject.folder / "tiny-0", "reference")
        expected = await trainer.logprobs(given, "reference")
        await trainer.update(given, LIKELIHOOD, lr=1e-2)
        await trainer.save(folder)
    async with loaded(subject, seed=1) as fresh:
        await fresh.restore(folder)
        apart = np.abs(await fresh.logprobs(given, "reference") - expected).max()
        assert apart < 1e-5, f"restore() must bring back the reference that was saved; it is {apart:.2g} apart"


@async_test
async def test_every_publish_is_a_new_version_with_weights(subject: Subject) -> None:
    assert subject.transports, "a trainer must name at least one transport in `transports`"
    async with loaded(subject) as trainer:
        last = -1
        for transport in (*trainer.transports, *trainer.transports):  # what it has on this machine
            policy = await trainer.publish(transport, subject.folder / "published")
            assert policy.version > last, f"versions must rise: {last}, {policy.version}"
            assert policy.ticket.transport == transport, f"asked for '{transport}', not '{policy.ticket.transport}'"
            last = policy.version
        await fails_with(
            trainer.publish("kit.unknown", subject.folder / "published"), TrainerError, why="an unknown transport"
        )
        await trainer.load(subject.folder / "tiny-0")
        again = await trainer.publish(trainer.transports[0], subject.folder / "published")
        assert again.version == 1, f"load() must set the version back to 0; publish() gave {again.version}"


@async_test
async def test_a_trainer_that_slept_goes_on_as_it_was(subject: Subject) -> None:
    given, found = batch(), []
    for sleeps in (False, True):
        async with loaded(subject) as trainer:
            await trainer.load(subject.folder / "tiny-0", "reference")
            for _ in range(2):
                await trainer.update(given, LIKELIHOOD, lr=1e-2)
                if sleeps:
                    await trainer.sleep()
            found.append((await trainer.logprobs(given), await trainer.logprobs(given, "reference")))
    for policy, stayed, slept in zip(("current", "reference"), *found, strict=True):
        apart = np.abs(stayed - slept).max()
        assert apart < 1e-5, (
            f"sleep() must keep all; the log-probabilities of the {policy} policy are {apart:.2g} apart"
        )


@pytest.mark.ale_transport("memory")
@async_test
async def test_weights_published_in_memory_are_copies(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        first = await weights_in_memory(trainer, subject)
        copies = {name: value + 0 for name, value in first.items()}
        await trainer.update(batch(), LIKELIHOOD, lr=1e-3)
        second = await weights_in_memory(trainer, subject)
        assert all(bool((first[name] == value).all()) for name, value in copies.items()), (
            "published weights are copies: an update must not change those of the version before"
        )
        assert any(bool((second[name] != value).any()) for name, value in first.items()), (
            "a version that was published after an update must have the new weights"
        )


@pytest.mark.ale_transport("folder")
@async_test
async def test_weights_published_in_a_folder_are_a_whole_model(subject: Subject) -> None:
    place, given = subject.folder / "weights", batch()
    async with loaded(subject) as trainer:
        await trainer.update(given, LIKELIHOOD, lr=1e-2)
        expected = await trainer.logprobs(given)
        policy = await trainer.publish("folder", place)
        assert isinstance(policy.ticket, FolderTicket), "the transport 'folder' has a FolderTicket"
        found = policy.ticket.folder
        assert found == place / str(policy.version), f"written to {place}/{policy.version}, not to {found}"
        await trainer.update(given, LIKELIHOOD, lr=1e-2)
        assert sorted(path.name for path in place.iterdir()) == [found.name], "nothing else is left beside it"
        assert (found / "config.json").is_file(), "a published folder must be a Hugging Face model"
        assert list(found.glob("*.safetensors")), "weights in a folder are *.safetensors files"
        await trainer.load(found)
        apart = np.abs(await trainer.logprobs(given) - expected).max()
        assert apart < 1e-5, f"a published folder must hold the policy as it was published; it is {apart:.2g} apart"


@async_test
async def test_a_loss_that_asks_for_it_can_raise_the_entropy(subject: Subject) -> None:
    async with loaded(subject) as trainer:
        given = batch()
        found = [(await trainer.update(given, Bonus(), lr=1e-2))["entropy"] for _ in range(5)]
        assert found[-1] > found[0] + 1e-3, (
            "LossInput.entropy must carry a gradient where the loss's `entropy_gradient` is true: five updates that "
            f"pull entropies up took them from {found[0]:.4f} to {found[-1]:.4f}"
        )
