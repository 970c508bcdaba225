"""With LoRA small adapters are trained beside frozen weights, and everyone else sees one model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ale.errors import ConfigError
from ale.specs.engine import FolderTicket
from ale.specs.trainer import Loss, TrainBatch
from ale_trainer_torch import TorchTrainer

ModelFolder = Callable[[str], Path]
Trainers = Callable[..., AbstractAsyncContextManager[TorchTrainer]]
Batches = Callable[..., TrainBatch]
LORA = {"rank": 4, "alpha": 8}


async def published(trainer: TorchTrainer, folder: Path) -> Path:
    ticket = (await trainer.publish("folder", folder)).ticket
    assert isinstance(ticket, FolderTicket)
    return ticket.folder


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
async def test_what_is_published_is_the_model_that_was_trained(
    name: str,
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    tmp_path: Path,
) -> None:
    folder, batch = model_folder(name), random_batch()
    async with trainer(folder, lora=LORA, lr=1e-2) as adapted, trainer(folder) as plain:
        assert np.abs(await adapted.logprobs(batch) - await plain.logprobs(batch)).max() < 1e-6, (
            "it begins as the model"
        )
        losses = [(await adapted.update(batch, likelihood_loss))["loss"] for _ in range(5)]
        assert losses[-1] < losses[0]
        out = await published(adapted, tmp_path)
        await plain.load(out)
        assert np.abs(await adapted.logprobs(batch) - await plain.logprobs(batch)).max() < 1e-5
    before, after = weights_in(folder), weights_in(out)
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    assert all(".layers." in key or ".h." in key for key in changed), "embeddings and the output layer stay"
    assert all(before[key].dim() == 2 for key in changed)


async def test_a_checkpoint_goes_on_bitwise_and_has_the_adapter_as_peft_writes_it(
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    tmp_path: Path,
) -> None:
    folder, batch = model_folder("qwen2"), random_batch()
    saved = tmp_path / "saved"
    async with trainer(folder, lora=LORA, lr=1e-2) as t:
        for _ in range(3):
            await t.update(batch, likelihood_loss)
        await t.save(saved)
        await t.update(batch, likelihood_loss)
        straight = weights_in(await published(t, tmp_path / "straight"))
    async with trainer(folder, lora=LORA, lr=1e-2) as t:
        await t.restore(saved)
        await t.update(batch, likelihood_loss)
        again = weights_in(await published(t, tmp_path / "again"))
    assert all(torch.equal(again[key], straight[key]) for key in straight)
    base = AutoModelForCausalLM.from_pretrained(folder)
    merged = PeftModel.from_pretrained(base, saved / "adapter").merge_and_unload().state_dict()
    for key, value in weights_in(saved).items():
        assert (merged[key] - value).abs().max() < 1e-6, key
    async with trainer(folder) as plain:
        with pytest.raises(ConfigError, match=r"saved with trainer\.lora \{.*\}, and this trainer has null"):
            await plain.restore(saved)


async def test_two_ranks_in_bfloat16_train_the_adapters_as_one_does(
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    tmp_path: Path,
) -> None:
    folder, batches = model_folder("qwen2"), [random_batch(seed) for seed in range(3)]
    async with trainer(folder, lora=LORA) as one, trainer(folder, lora=LORA, ranks=2) as two:
        for batch in batches:
            expected, found = [await t.update(batch, likelihood_loss) for t in (one, two)]
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
            assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        await two.save(tmp_path / "of two")
        await one.restore(tmp_path / "of two")
        assert np.abs(await one.logprobs(batches[0]) - await two.logprobs(batches[0])).max() < 1e-5
    async with trainer(folder, lora=LORA, dtype="bfloat16", lr=1e-2) as narrow:
        losses = [(await narrow.update(batches[0], likelihood_loss))["loss"] for _ in range(5)]
        assert losses[-1] < losses[0]
        out = weights_in(await published(narrow, tmp_path / "narrow"))
    assert {value.dtype for value in out.values()} == {torch.bfloat16}


@pytest.mark.parametrize("targets", ["no_such_layer", ["lm_head"]])
async def test_layers_that_cannot_be_adapted_are_a_sentence(
    targets: str | list[str], model_folder: ModelFolder, trainer: Trainers
) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.lora\.target_modules"):
        async with trainer(model_folder("qwen2"), lora={"target_modules": targets}):
            pass
