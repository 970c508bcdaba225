"""Folders: whole or absent, exactly what was saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ale.errors import ConfigError, TrainerError
from ale.specs.engine import FolderTicket, MemoryTicket, PolicyVersion
from ale.specs.trainer import Loss, TrainBatch
from ale_torch.training.checkpoint_folder import OPTIMIZER_FOLDER, STATE_FILE
from ale_trainer_torch import TorchTrainer

ModelFolder = Callable[[str], Path]
Trainers = Callable[..., AbstractAsyncContextManager[TorchTrainer]]
Batches = Callable[..., TrainBatch]


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
async def test_a_run_that_stops_and_goes_on_ends_at_the_very_same_weights(
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    tmp_path: Path,
    name: str,
) -> None:
    batches = [random_batch(seed) for seed in range(3)]
    async with trainer(model_folder(name), weight_decay=0.1) as t:
        for batch in batches:
            await t.update(batch, likelihood_loss)
        straight = await t.publish("memory", tmp_path)
    async with trainer(model_folder(name), weight_decay=0.1) as t:
        for batch in batches[:2]:
            await t.update(batch, likelihood_loss)
        await t.publish("memory", tmp_path)
        await t.save(tmp_path / "saved")
    async with trainer(weight_decay=0.1) as t:
        await t.restore(tmp_path / "saved")
        await t.update(batches[2], likelihood_loss)
        policy = await t.publish("memory", tmp_path)
    assert policy.version == 2
    assert isinstance(policy.ticket, MemoryTicket)
    assert isinstance(straight.ticket, MemoryTicket)
    found, expected = policy.ticket.weights, straight.ticket.weights
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


async def test_a_checkpoint_is_a_model_folder_with_its_tokenizer(
    model_folder: ModelFolder, trainer: Trainers, tmp_path: Path
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        await t.save(tmp_path / "deep" / "saved")
        await t.save(tmp_path / "deep" / "saved")
        await t.load(tmp_path / "deep" / "saved")
        assert (await t.publish("memory", tmp_path)).version == 1
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["saved"]
    assert len(PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "deep" / "saved"))) == 300
    AutoModelForCausalLM.from_pretrained(str(tmp_path / "deep" / "saved"))


async def test_a_checkpoint_moved_aside_when_the_process_died_is_found_again(
    model_folder: ModelFolder, trainer: Trainers, tmp_path: Path
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        await t.save(tmp_path / "c")
        (tmp_path / "c").rename(tmp_path / ".c.old")
        await t.restore(tmp_path / "c")
    assert (tmp_path / "c" / STATE_FILE).exists()


async def test_a_save_that_fails_leaves_the_checkpoint_before_it(
    model_folder: ModelFolder, trainer: Trainers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        await t.save(tmp_path / "c")
        with monkeypatch.context() as m:
            m.setattr(torch, "save", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
            with pytest.raises(OSError, match="disk full"):
                await t.save(tmp_path / "c")
        await t.restore(tmp_path / "c")


async def test_a_folder_published_for_engines_is_a_model_with_its_tokenizer_and_no_more(
    model_folder: ModelFolder, trainer: Trainers, tmp_path: Path
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        policy = await t.publish("folder", tmp_path / "weights")
        assert policy == PolicyVersion(1, FolderTicket(tmp_path / "weights" / "1"))
    names = {path.name for path in (tmp_path / "weights" / "1").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert STATE_FILE not in names
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["1"]


async def test_folders_without_a_usable_model_are_sentences(
    model_folder: ModelFolder, trainer: Trainers, tmp_path: Path
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        with pytest.raises(ConfigError, match=r"no config\.json"):
            await t.load(tmp_path)
        with pytest.raises(ConfigError, match="is not a checkpoint"):
            await t.restore(tmp_path)

        def spoiled(name: str, text: str) -> Path:
            folder = tmp_path / name
            shutil.copytree(model_folder("qwen2"), folder)
            (folder / "config.json").write_text(text)
            return folder

        config = json.loads((model_folder("qwen2") / "config.json").read_text())
        for name, text in (
            ("syntax", "{"),
            ("unknown", '{"model_type": "nobody"}'),
            ("wider", json.dumps(config | {"hidden_size": 32})),
            ("deeper", json.dumps(config | {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3})),
        ):
            with pytest.raises(ConfigError, match=name):
                await t.load(spoiled(name, text))
        # What was loaded before is still there.
        assert (await t.publish("memory", tmp_path)).version == 1


async def test_damaged_or_foreign_states_are_sentences(
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    tmp_path: Path,
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        await t.save(tmp_path / "damaged")
        (tmp_path / "damaged" / STATE_FILE).write_bytes(b"x")
        with pytest.raises(ConfigError, match="damaged"):
            await t.restore(tmp_path / "damaged")
        await t.update(random_batch(), likelihood_loss)
        await t.save(tmp_path / "qwen2")
    async with trainer(model_folder("gpt2")) as t:
        await t.save(tmp_path / "gpt2")
        shutil.rmtree(tmp_path / "gpt2" / OPTIMIZER_FOLDER)
        shutil.copytree(tmp_path / "qwen2" / OPTIMIZER_FOLDER, tmp_path / "gpt2" / OPTIMIZER_FOLDER)
        with pytest.raises(TrainerError, match="not of this model"):
            await t.restore(tmp_path / "gpt2")
