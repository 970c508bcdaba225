"""Deliberately wrong trainers: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

TRAINER = (
    "from ale_trainer_torch import TorchTrainer\nimport numpy as np\nfrom dataclasses import replace\n"
    "import asyncio\nfrom ale_testing.function_loss import FunctionLoss\nclass Fixed(TorchTrainer):\n"
)

WRONG = {
    "the same version twice": Wrong(
        "trainer",
        TRAINER
        + """
    async def publish(self, transport, folder):
        return replace(await super().publish(transport, folder), version=1)
""",
        "test_every_publish_is_a_new_version_with_weights",
        "versions must rise: 1, 1",
        "threads: 1",
    ),
    "a loss that is nan is trained on": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        try:
            return await super().update(batch, loss, lr=lr, weight_decay=weight_decay)
        except Exception:
            return {"loss": 0.0}
""",
        "test_a_nan_loss_or_gradient_is_refused_and_changes_nothing",
        "a loss that is not finite: it must raise TrainerError, it returned",
        "threads: 1",
    ),
    "a gradient that is nan is trained on": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        try:
            return await super().update(batch, loss, lr=lr, weight_decay=weight_decay)
        except Exception as error:
            if "gradient" not in str(error):
                raise
            return {"loss": 0.0}
""",
        "test_a_nan_loss_or_gradient_is_refused_and_changes_nothing",
        "a gradient that is not finite: it must raise TrainerError, it returned",
        "threads: 1",
    ),
    "a damaged optimizer is a fresh one": Wrong(
        "trainer",
        TRAINER
        + """
    async def restore(self, folder):
        try:
            await super().restore(folder)
        except Exception:
            await super().load(folder)
""",
        "test_a_damaged_checkpoint_is_an_error_message",
        "is cut off: it must raise AleError, it returned None",
        "threads: 1",
    ),
    "a token scored by its own logits": Wrong(
        "trainer",
        TRAINER
        + """
    async def logprobs(self, batch, policy="current"):
        found = await super().logprobs(batch, policy)
        return np.where(batch.chunk_ids >= 0, np.where(found * 0.9 < 0, found * 0.9, -1e-3), 0).astype(np.float32)
""",
        "test_a_logprob_depends_only_on_earlier_tokens",
        "the probabilities must add up to 1, not",
        "threads: 1",
    ),
    "half a folder for engines": Wrong(
        "trainer",
        TRAINER
        + """
    async def publish(self, transport, folder):
        made = await super().publish(transport, folder)
        if transport == "folder":
            (made.ticket.folder / "model.safetensors").unlink()
        return made
""",
        "test_weights_published_in_a_folder_are_a_whole_model",
        "weights in a folder are *.safetensors files",
        "threads: 1",
    ),
    "weights that go on changing": Wrong(
        "trainer",
        TRAINER
        + """
    async def publish(self, transport, folder):
        made = await super().publish(transport, folder)
        if transport != "memory":
            return made
        self.live = getattr(self, "live", made.ticket.weights)
        for name, value in made.ticket.weights.items():
            self.live[name].copy_(value)
        return replace(made, ticket=type(made.ticket)(self.live))
""",
        "test_weights_published_in_memory_are_copies",
        "published weights are copies",
        "threads: 1",
    ),
    "the normalizer of each micro-batch": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        def own(inputs):
            return loss(replace(inputs, normalizer=float(len(inputs.logprobs)) + 0.5))
        return await super().update(batch, FunctionLoss(own), lr=lr, weight_decay=weight_decay)
""",
        "test_the_loss_receives_whole_trajectories_and_the_batchs_normalizer",
        "normalizer is the batch's",
        "threads: 1",
    ),
    "the optimizer is not saved": Wrong(
        "trainer",
        TRAINER
        + """
    async def restore(self, folder):
        await super().load(folder)
""",
        "test_a_checkpoint_restores_the_saved_state",
        "restore() must bring the optimizer back too",
        "threads: 1",
    ),
    "lr is not heard": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        return await super().update(batch, loss, weight_decay=weight_decay)
""",
        "test_an_update_makes_trained_tokens_likelier",
        "lr= must win over the configured rate",
        "threads: 1",
    ),
    "maxima are forgotten": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        hidden = lambda inputs: replace(loss(inputs), maxima={})
        return await super().update(batch, FunctionLoss(hidden), lr=lr, weight_decay=weight_decay)
""",
        "test_metrics_named_as_maxima",
        "update() must return LossOutput.maxima too",
        "threads: 1",
    ),
    "a penalty's normalizer that is lost": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, **how):
        return await super().update(replace(batch, reference_normalizer=None), loss, **how)
""",
        "test_the_loss_receives_whole_trajectories_and_the_batchs_normalizer",
        "reference_normalizer is the batch's",
    ),
    "an update at temperature 1": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, **how):
        return await super().update(replace(batch, temperature=1.0), loss, **how)
""",
        "test_logits_are_divided_by_the_batchs_temperature",
        "the loss of an update must see log-probabilities of logits divided by TrainBatch.temperature too",
        "threads: 1",
    ),
    "a reference that learns along": Wrong(
        "trainer",
        TRAINER
        + """
    async def logprobs(self, batch, policy="current"):
        await super().logprobs(batch, policy)
        return await super().logprobs(batch)
""",
        "test_updates_do_not_change_the_reference_policy",
        "an update must not change the reference",
        "threads: 1",
    ),
    "a reference that is not saved": Wrong(
        "trainer",
        TRAINER
        + """
    async def restore(self, folder):
        await super().restore(folder)
        await self.load(folder, "reference")
""",
        "test_a_checkpoint_holds_the_reference_policy",
        "restore() must bring back the reference that was saved",
        "threads: 1",
    ),
    "sleep that forgets the optimizer": Wrong(
        "trainer",
        TRAINER
        + """
    async def sleep(self):
        from pathlib import Path
        from tempfile import TemporaryDirectory
        with TemporaryDirectory() as folder:
            policy = await self.publish("folder", Path(folder))
            await self.load(policy.ticket.folder)
            await self.load(policy.ticket.folder, "reference")
""",
        "test_a_trainer_that_slept_goes_on_as_it_was",
        "sleep() must keep all",
        "threads: 1",
    ),
    "weight decay is not heard": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        return await super().update(batch, loss, lr=lr)
""",
        "test_weight_decay_shrinks_weights_without_a_gradient",
        "weight_decay= must pull the weights",
        "threads: 1",
    ),
    "weight decay stays": Wrong(
        "trainer",
        TRAINER
        + """
    async def update(self, batch, loss, *, lr=None, weight_decay=None):
        self.decay = weight_decay or getattr(self, "decay", None)
        return await super().update(batch, loss, lr=lr, weight_decay=self.decay)
""",
        "test_weight_decay_shrinks_weights_without_a_gradient",
        "must hold for that step alone",
        "threads: 1",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
