"""A trainer restores only what was saved with the settings that decide what its weights mean."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ale.errors import ConfigError
from ale.specs.trainer import Loss, TrainBatch
from ale_trainer_torch import TorchTrainer
from ale_trainer_torch.trainer import LoraSettings

ModelFolder = Callable[[str], Path]
Trainers = Callable[..., AbstractAsyncContextManager[TorchTrainer]]
Batches = Callable[..., TrainBatch]
LORA = {"rank": 4, "alpha": 8, "target_modules": ["v_proj", "q_proj"]}


@pytest.mark.parametrize(
    ("saved", "present", "says"),
    [
        (
            {"lora": LORA},
            {"lora": LORA | {"alpha": 16}},
            r"trainer\.lora\.alpha 8\.0, and this trainer has 16\.0: ",
        ),
        ({"lora": LORA}, {"lora": LORA | {"rank": 2}}, r"trainer\.lora\.rank 4, and .* has 2: .* Set .* to 4\."),
        (
            {"lora": LORA},
            {"lora": LORA | {"target_modules": "all-linear"}},
            r'trainer\.lora\.target_modules \["q_proj", "v_proj"\], and this trainer has all-linear',
        ),
        ({"lora": LORA}, {}, r'trainer\.lora \{"rank": 4, .*\}, and this trainer has null'),
        ({}, {"lora": LORA}, r"trainer\.lora null, and this trainer has \{"),
        ({"value_head": True}, {}, r"trainer\.value_head true, and this trainer has false"),
        ({"lora": LORA}, {"lora": LORA, "value_head": True}, r"trainer\.value_head false, and this trainer has true"),
    ],
)
async def test_a_setting_that_changes_what_weights_mean_is_compared(
    saved: dict[str, Any],
    present: dict[str, Any],
    says: str,
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    tmp_path: Path,
) -> None:
    batch = random_batch()
    async with trainer(model_folder("qwen2"), **saved) as t:
        await t.update(batch, likelihood_loss)
        await t.save(tmp_path / "c")
    async with trainer(model_folder("qwen2"), **present) as t:
        before = await t.logprobs(batch)
        with pytest.raises(ConfigError, match=f"The checkpoint .* was saved with {says}"):
            await t.restore(tmp_path / "c")
        assert np.array_equal(await t.logprobs(batch), before)
    async with trainer(**saved) as t:
        await t.restore(tmp_path / "c")


async def test_layers_in_another_order_are_the_same_and_rates_may_change(
    model_folder: ModelFolder, trainer: Trainers, tmp_path: Path
) -> None:
    async with trainer(model_folder("qwen2"), lora=LORA) as t:
        await t.save(tmp_path / "c")
    async with trainer(lora=LORA | {"target_modules": ["q_proj", "v_proj"]}, lr=1e-2, micro_batch_tokens=64) as t:
        await t.restore(tmp_path / "c")


def test_the_type_and_the_optimizer_are_settings_too() -> None:
    from ale_torch.training.saved_settings import REASONS
    from ale_trainer_torch.optimizer import Optimization

    plain = Optimization(1e-3, (0.9, 0.95), 1e-8, 0.0, 1.0, 1000, None, True)
    assert plain.settings == {
        "trainer.dtype": "float32",
        "trainer.lora": None,
        "trainer.optimizer": "adamw",
        "trainer.value_head": False,
    }
    assert {*plain.settings, *(f"trainer.lora.{name}" for name in LoraSettings.model_fields)} == REASONS.keys()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5e5}, r"rope_parameters\.rope_theta 10000\.0"),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, r"rope_parameters\.factor null"),
        ("rms_norm_eps", 1e-3, "rms_norm_eps 1e-06"),
        ("sliding_window", 4, "sliding_window null"),
    ],
)
async def test_a_configuration_that_makes_another_model_of_the_weights_is_refused(
    key: str, value: Any, says: str, model_folder: ModelFolder, trainer: Trainers, tmp_path: Path
) -> None:
    async with trainer(model_folder("qwen2")) as t:
        await t.save(tmp_path / "c")
        shutil.copytree(tmp_path / "c", tmp_path / "other")
        file = tmp_path / "other" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: value, "transformers_version": "9"}))
        with pytest.raises(ConfigError, match=rf"was saved with {says}.* in its config\.json"):
            await t.restore(tmp_path / "other")
        await t.restore(tmp_path / "c")
