"""What one layout saved, another goes on from: Megatron's layouts, and the trainer `torch`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_setup import Surrogate, build_batch, megatron, plain

from ale.errors import ConfigError, TrainerError
from ale.specs.trainer import TrainerBackend

ModelFolder = Callable[[str], Path]
Opened = AbstractAsyncContextManager[TrainerBackend]
ALL = {"ranks": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True}


async def go_on(trainer: TrainerBackend) -> tuple[list[float], Any]:
    """Losses and gradient norms of two updates, and log-probabilities after them."""
    found = []
    for seed in (3, 4):
        totals = await trainer.update(build_batch(seed), Surrogate(), lr=1e-2)
        found += [totals["loss"], totals["grad_norm"]]
    return found, await trainer.logprobs(build_batch(5))


@pytest.mark.parametrize(("name", "dtype", "slack"), [("qwen3_moe", "float32", 1e-5), ("qwen2", "bfloat16", 2e-2)])
async def test_any_layout_goes_on_from_what_one_saved(
    name: str, dtype: str, slack: float, model_folder: ModelFolder, tmp_path: Path
) -> None:
    new, begun = tmp_path / "new", tmp_path / "begun"
    async with megatron(model_folder(name), **ALL, dtype=dtype) as one:
        await one.load(model_folder(name), "reference")
        await one.save(new)
        for seed in range(3):
            await one.update(build_batch(seed), Surrogate(), lr=1e-2)
        await one.save(begun)
        reference = await one.logprobs(build_batch(5), "reference")
        expected, after = await go_on(one)
        await one.restore(begun)
        again, after_again = await go_on(one)
        assert again == expected
        assert np.array_equal(after_again, after)

    async def is_the_same(opened: Opened) -> None:
        async with opened as other:
            await other.restore(begun)
            assert np.abs(await other.logprobs(build_batch(5), "reference") - reference).max() < slack
            found, after_other = await go_on(other)
            assert found == pytest.approx(expected, rel=slack, abs=slack)
            assert np.abs(after_other - after).max() < 10 * slack
            await other.restore(new)  # from before the first step

    await is_the_same(megatron(ranks=2, dtype=dtype))
    await is_the_same(plain(dtype=dtype))
    await is_the_same(plain(ranks=2, dtype=dtype))


async def test_it_goes_on_from_what_the_trainer_torch_saved(model_folder: ModelFolder, tmp_path: Path) -> None:
    async with plain(model_folder("llama")) as one:
        await one.update(build_batch(), Surrogate())
        await one.save(tmp_path / "saved")
        expected, _ = await go_on(one)
    async with megatron(ranks=2, pipeline_parallel=2) as other:
        await other.restore(tmp_path / "saved")
        found, _ = await go_on(other)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.fixture
async def saved(model_folder: ModelFolder, tmp_path: Path) -> Path:
    """A checkpoint after a step, as the trainer `torch` writes it too."""
    async with plain(model_folder("qwen2")) as trainer:
        await trainer.update(build_batch(), Surrogate())
        await trainer.save(tmp_path / "saved")
    return tmp_path / "saved"


async def test_what_is_no_checkpoint_of_the_model_is_a_sentence_and_changes_nothing(
    saved: Path, model_folder: ModelFolder, tmp_path: Path
) -> None:
    async with megatron(model_folder("qwen2"), ranks=2, tensor_parallel=2) as trainer:
        before = await trainer.logprobs(build_batch())
        with pytest.raises(ConfigError, match=r"no trainer_state\.pt"):
            await trainer.restore(model_folder("qwen2"))
        shutil.copytree(saved, tmp_path / "damaged")
        next((tmp_path / "damaged" / "optimizer").glob("*.distcp")).write_bytes(b"x")
        with pytest.raises(ConfigError, match="the checkpoint is damaged, use an earlier one"):
            await trainer.restore(tmp_path / "damaged")
        shutil.copytree(saved, tmp_path / "mixed")
        for file in model_folder("qwen3").glob("*"):
            shutil.copy2(file, tmp_path / "mixed")
        with pytest.raises(ConfigError, match="the same weights are another model"):
            await trainer.restore(tmp_path / "mixed")
        async with plain(model_folder("qwen3")) as other:
            await other.save(tmp_path / "foreign")
        shutil.rmtree(tmp_path / "foreign" / "optimizer")
        shutil.copytree(saved / "optimizer", tmp_path / "foreign" / "optimizer")
        with pytest.raises(TrainerError, match="is not of this model"):
            await trainer.restore(tmp_path / "foreign")
        assert np.array_equal(await trainer.logprobs(build_batch()), before)


async def test_settings_that_change_what_weights_mean_are_compared(
    saved: Path, model_folder: ModelFolder, tmp_path: Path
) -> None:
    async with plain(model_folder("qwen2"), lora={"rank": 4}) as trainer:
        await trainer.save(tmp_path / "adapted")
    async with megatron(dtype="bfloat16") as trainer:
        with pytest.raises(ConfigError, match=r"trainer\.dtype float32, and this trainer has bfloat16"):
            await trainer.restore(saved)
    async with megatron() as trainer:
        with pytest.raises(ConfigError, match=r'trainer\.lora \{"rank": 4'):
            await trainer.restore(tmp_path / "adapted")
