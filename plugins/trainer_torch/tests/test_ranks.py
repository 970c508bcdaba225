"""Over several ranks the trainer is the same trainer."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from ale.errors import ConfigError, TrainerError
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket
from ale.specs.trainer import Loss, TrainBatch
from ale_testing.processes import below, running
from ale_torch.ranks import Ranks
from ale_trainer_torch import TorchTrainer

ModelFolder = Callable[[str], Path]
Trainers = Callable[..., AbstractAsyncContextManager[TorchTrainer]]
Batches = Callable[..., TrainBatch]


async def weights_of(trainer: TorchTrainer, folder: Path) -> dict[str, torch.Tensor]:
    policy = await trainer.publish("folder", folder)
    assert isinstance(policy.ticket, FolderTicket)
    return load_file(policy.ticket.folder / "model.safetensors")


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def processes_of(trainer: TorchTrainer) -> tuple[int, list[int]]:
    """The process that forked the trainer's two ranks, and these."""
    assert isinstance(trainer._workers, Ranks)
    parent = trainer._workers._process.pid
    ranks = sorted(below(parent))
    assert len(ranks) == 2
    return parent, ranks


async def all_ended(pids: set[int]) -> None:
    """Wait until they have ended: those that are killed by force may do so a moment after their parent."""
    until = time.monotonic() + 60
    while left := running(pids):
        assert time.monotonic() < until, f"they go on: {left}"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True, "packing": False}])
async def test_two_ranks_train_and_save_as_one_does(
    settings: dict[str, bool],
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    tmp_path: Path,
) -> None:
    folder, batches = model_folder("qwen2"), [random_batch(seed) for seed in range(3)]
    how = {"micro_batch_tokens": 50, **settings}
    async with trainer(folder, **how) as one, trainer(folder, ranks=2, **how) as two:
        await two.load(folder, "reference")
        for batch in batches[:2]:
            expected = await one.update(batch, likelihood_loss)
            found = await two.update(batch, likelihood_loss)
            for name in ("loss", "grad_norm", "n", "entropy", "tokens"):
                assert found[name] == pytest.approx(expected[name], rel=1e-5), name
        assert np.abs(await two.logprobs(batches[2]) - await one.logprobs(batches[2])).max() < 1e-5
        reference = await two.logprobs(batches[2], "reference")
        assert apart(await weights_of(two, tmp_path / "two"), await weights_of(one, tmp_path / "one")) < 1e-5
        await one.save(tmp_path / "of one")
        await two.save(tmp_path / "of two")
        await one.update(batches[2], likelihood_loss)
        straight = await weights_of(one, tmp_path / "one")
        # Each goes on from what the other saved.
        await two.restore(tmp_path / "of one")
        await two.update(batches[2], likelihood_loss)
        await one.restore(tmp_path / "of two")
        assert np.abs(await one.logprobs(batches[2], "reference") - reference).max() < 1e-5
        await one.update(batches[2], likelihood_loss)
        for of in (one, two):
            assert apart(await weights_of(of, tmp_path / f"again {of is two}"), straight) < 1e-5
        with pytest.raises(ConfigError, match=r"no config\.json"):
            await two.load(tmp_path)
        await two.logprobs(batches[0])


async def test_steps_too_small_for_bfloat16_are_not_lost(
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    tmp_path: Path,
) -> None:
    batch = random_batch()
    async with trainer(model_folder("qwen2"), dtype="bfloat16", lr=1e-4) as t:
        first = await weights_of(t, tmp_path / "weights")
        for _ in range(20):
            await t.update(batch, likelihood_loss)
        await t.save(tmp_path / "saved")
        await t.load(model_folder("qwen2"))
        await t.restore(tmp_path / "saved")
        for _ in range(20):
            await t.update(batch, likelihood_loss)
        last = await weights_of(t, tmp_path / "weights")
    norm = "model.layers.0.input_layernorm.weight"  # ones: in bfloat16 a step of 1e-4 leaves them as they are
    assert first[norm].dtype == torch.bfloat16
    assert float(torch.tensor(1.0).bfloat16() - 1e-4) == 1.0
    assert (last[norm] != first[norm]).float().mean() > 0.5
    assert float((last[norm].float() - 1).abs().max()) == pytest.approx(40 * 1e-4, abs=4e-3)


async def test_a_rank_that_dies_is_an_error_and_leaves_no_process(
    model_folder: ModelFolder, trainer: Trainers, random_batch: Batches, likelihood_loss: Loss
) -> None:
    async with trainer(model_folder("qwen2"), ranks=2) as t:
        parent, ranks = processes_of(t)
        os.kill(ranks[1], signal.SIGKILL)
        with pytest.raises(TrainerError, match="its process ended by SIGKILL"):
            await t.update(random_batch(), likelihood_loss)
        with pytest.raises(TrainerError, match="its process ended by SIGKILL"):
            await t.logprobs(random_batch())
    await all_ended({parent, *ranks})


async def test_a_rank_that_stopped_for_good_does_not_hold_up_the_end(
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ale_torch.training.ranked_trainer.CLOSE_S", 1.0)
    async with trainer(model_folder("qwen2"), ranks=2) as t:
        parent, ranks = processes_of(t)
        os.kill(ranks[1], signal.SIGSTOP)
        update = asyncio.create_task(t.update(random_batch(), likelihood_loss))
        await asyncio.sleep(0.1)
    with pytest.raises(TrainerError, match=r"The ranks were ended by force\."):
        await update
    await all_ended({parent, *ranks})


def test_ranks_and_devices_that_cannot_be_are_sentences() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        TorchTrainer.Config(ranks=0)
    for device in ("cuda:0", "cuda"):
        with pytest.raises(ConfigError, match=r"trainer\.(ranks|device) is"):
            TorchTrainer(TorchTrainer.Config(ranks=torch.cuda.device_count() + 1, device=device), DriverContext())
    assert TorchTrainer(TorchTrainer.Config(), DriverContext()).transports[0] == "memory"
    assert "memory" not in TorchTrainer(TorchTrainer.Config(ranks=2, device="cpu"), DriverContext()).transports


class Places:
    """Places of a cluster for ranks on CPUs; they are on this machine."""

    device = "cpu"

    def __init__(self, count: int) -> None:
        self.count = count

    def start(self, target: str, args: tuple[Any, ...], *, threads: int, launched: Callable[[Any], None]) -> Ranks:
        return Ranks(target, self.count, args, threads=threads, backend="gloo", launched=launched)


@pytest.mark.parametrize("count", [1, 2])
async def test_on_a_cluster_all_ranks_are_where_it_starts_them(
    count: int,
    model_folder: ModelFolder,
    trainer: Trainers,
    random_batch: Batches,
    likelihood_loss: Loss,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, folder = random_batch(), model_folder("qwen2")
    async with trainer(folder) as one:
        expected = await one.update(batch, likelihood_loss)
    monkeypatch.setattr("ale_torch.training.worker.pick_device", None)
    context = DriverContext(seed=5, ranks=Places(count))
    async with TorchTrainer(TorchTrainer.Config(threads=1), context) as t:
        assert t.transports == ("folder", "gloo")
        assert isinstance(t._workers, Ranks), "also one rank is none of this process's"
        assert t._workers.size == count
        await t.load(folder)
        found = await t.update(batch, likelihood_loss)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_on_a_cluster_weights_do_not_come_by_the_memory_of_one_gpu() -> None:
    places = Places(2)
    places.device = "cuda"
    assert TorchTrainer(TorchTrainer.Config(), DriverContext(ranks=places)).transports == ("nccl", "folder")
    with pytest.raises(ConfigError, match=r"trainer\.ranks is 3, but cluster\.trainer\.ranks is 2"):
        TorchTrainer(TorchTrainer.Config(ranks=3), DriverContext(ranks=places))


@pytest.mark.parametrize(("ranks", "place"), [(1, "cpu"), (2, "cpu ×2")])
def test_it_says_what_it_computes_on(ranks: int, place: str) -> None:
    assert TorchTrainer(TorchTrainer.Config(ranks=ranks, device="cpu"), DriverContext()).place == place
