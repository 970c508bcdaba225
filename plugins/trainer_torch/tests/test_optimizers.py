"""Moments of eight bits, and weights and moments that wait in the CPU's memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from ale.errors import ConfigError
from ale.specs.driver import DriverContext
from ale.specs.trainer import Loss, TrainBatch
from ale_torch.training.sleep import Asleep, storages_of, tensors_of
from ale_trainer_torch import TorchTrainer

ModelFolder = Callable[[str], Path]
Trainers = Callable[..., AbstractAsyncContextManager[TorchTrainer]]
Batches = Callable[..., TrainBatch]


@pytest.fixture(scope="module")
def torchao(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with torchao, which says much when it is imported, and so is not installed beside everything else."""
    folder = tmp_path_factory.mktemp("torchao")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "torchao"]
    subprocess.run(pip, check=True, capture_output=True)
    return folder


@pytest.fixture
def uncompiled(torchao: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao can be imported, here and in ranks, and its step is not compiled, which would take a minute."""
    monkeypatch.syspath_prepend(torchao)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)


@pytest.mark.network
@pytest.mark.parametrize(
    "settings", [{"optimizer": "adamw_8bit"}, {"optimizer": "adamw_8bit", "ranks": 2}, {"offload": True}]
)
async def test_other_optimizers_step_much_as_adamw_does_and_go_on_from_their_checkpoints(
    settings: dict[str, Any],
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    uncompiled: None,
    tmp_path: Path,
) -> None:
    folder, batch, how = model_folder("qwen2"), random_batch(), {"lr": 1e-2, "weight_decay": 0.1}
    async with trainer(folder, **how) as plain, trainer(folder, **how, **settings) as other:
        for lr in (1e-2, 5e-3, 1e-2, 1e-2):
            expected, found = [await t.update(batch, likelihood_loss, lr=lr) for t in (plain, other)]
        assert found["loss"] == pytest.approx(expected["loss"], rel=2e-3)
        await other.save(tmp_path / "saved")
        for _ in range(2):
            await other.update(batch, likelihood_loss)
        straight = await other.logprobs(batch)
        await other.restore(tmp_path / "saved")
        for _ in range(2):
            await other.update(batch, likelihood_loss)
        again = await other.logprobs(batch)
    assert np.array_equal(again, straight)


@pytest.mark.network
def test_moments_of_eight_bits_are_kept_for_large_matrices(model_folder: ModelFolder, uncompiled: None) -> None:
    from torchao.optim.subclass_8bit import OptimState8bit

    from ale_trainer_torch.optimizer import Optimization, make_optimizer

    how = Optimization(1e-3, (0.9, 0.95), 1e-8, 0.0, 1.0, 1000, None, True, optimizer="adamw_8bit")
    matrix, small = (torch.nn.Parameter(torch.ones(shape)) for shape in ((64, 128), (8, 8)))
    optimizer = make_optimizer([matrix, small], how)
    for parameter in (matrix, small):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert isinstance(optimizer.state[matrix]["exp_avg"], OptimState8bit)
    assert not isinstance(optimizer.state[small]["exp_avg"], OptimState8bit)
    before = optimizer.state[matrix]["exp_avg"].dequantize().clone()
    asleep = Asleep(tensors_of(optimizers=[optimizer]), "cpu")
    assert sum(storage.nbytes() for storage in storages_of(tensors_of(optimizers=[optimizer]))) == 0
    asleep.wake()
    assert torch.equal(optimizer.state[matrix]["exp_avg"].dequantize(), before)


def test_a_library_that_is_missing_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError, match=r"pip install 'ale-plugin-trainer-torch\[8bit\]'"):
        TorchTrainer(TorchTrainer.Config(optimizer="adamw_8bit"), DriverContext())


def test_an_offloaded_optimizer_of_eight_bits_is_refused() -> None:
    with pytest.raises(ValidationError, match="leave one of the two out"):
        TorchTrainer.Config(offload=True, optimizer="adamw_8bit")
