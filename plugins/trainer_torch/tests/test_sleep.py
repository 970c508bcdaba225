"""A trainer that sleeps has nothing on its device, and goes on to the last digit as if it had not slept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ale.errors import TrainerError
from ale.specs.trainer import Loss, TrainBatch
from ale_torch.ranks import World
from ale_torch.training.sleep import Asleep, storages_of
from ale_trainer_torch.lora import LoraSettings
from ale_trainer_torch.optimizer import Optimization
from ale_trainer_torch.worker import Worker


class Sleeper(Worker):
    """A worker on a CPU that sleeps as one on a GPU does."""

    def sleep(self) -> bool:
        """Sleep."""
        self._asleep = Asleep(self.learner.tensors(), "cpu")
        return True


@pytest.fixture(params=["whole", "sharded"])
def world(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "whole":
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def worker(folder: Path, **how: Any) -> Sleeper:
    made = Sleeper(World(), "cpu", Optimization(1e-2, (0.9, 0.95), 1e-8, 0.0, 1.0, 100, None, packing=True, **how))
    made.load(folder, "current")
    made.load(folder, "reference")
    for model in (made.learner.model, made.learner.reference):
        for parameter in model.parameters():
            if not isinstance(parameter, DTensor):
                parameter.data = parameter.data.clone()  # on a CPU it may be the mapped file, which has no other size
    return made


def bytes_held(slept: Sleeper) -> int:
    assert slept._learner is not None
    return sum(storage.nbytes() for storage in storages_of(slept._learner.tensors()))


@pytest.mark.parametrize("how", [{}, {"lora": LoraSettings(rank=2)}, {"value_head": True}], ids=["", "lora", "values"])
def test_it_goes_on_as_one_that_did_not_sleep(
    how: dict[str, Any],
    world: None,
    model_folder: Callable[[str], Path],
    random_batch: Callable[..., TrainBatch],
    likelihood_loss: Loss,
    tmp_path: Path,
) -> None:
    slept, awake = (worker(model_folder("qwen2"), **how) for _ in range(2))
    for seed in (1, 2, 3):
        found = []
        for one in (slept, awake):
            totals = one.update(random_batch(seed), likelihood_loss, None, None)
            if one is slept:
                assert bytes_held(slept) > 0
                slept.sleep()
                assert bytes_held(slept) == 0
            numbers = [one.logprobs(random_batch(9), role) for role in ("current", "reference")]
            found.append((totals | {"seconds": 0.0}, np.concatenate(numbers).tolist()))
        assert found[0] == found[1]
    slept.sleep()
    slept.save(tmp_path / "checkpoint")
    slept.sleep()
    slept.restore(tmp_path / "checkpoint")
    assert np.array_equal(slept.logprobs(random_batch(9), "current"), awake.logprobs(random_batch(9), "current"))


def test_a_device_that_others_have_filled_meanwhile_is_a_sentence_and_not_the_end(
    model_folder: Callable[[str], Path], random_batch: Callable[..., TrainBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = worker(model_folder("qwen2"))
    expected = slept.logprobs(random_batch(9), "current")
    slept.sleep()

    def fill(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as full:
        full.setattr(torch.UntypedStorage, "resize_", fill)
        with pytest.raises(TrainerError, match=r"The trainer slept, and there is no room for it on cpu any more"):
            slept.logprobs(random_batch(9), "current")
    assert np.array_equal(slept.logprobs(random_batch(9), "current"), expected), "once there is room again"
