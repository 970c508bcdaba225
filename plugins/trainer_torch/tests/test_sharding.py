"""A model that is sharded need not fit on the device of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import Qwen2ForCausalLM

from ale_trainer_torch.learner import Learner
from ale_trainer_torch.optimizer import Optimization


@pytest.fixture
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def learner(folder: Path) -> Learner:
    how = Optimization(1e-3, (0.9, 0.95), 1e-8, 0.0, 1.0, 100, None, packing=True)
    return Learner(folder, torch.device("cpu"), how)


def forbid_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_how: object) -> None:
        raise AssertionError("the whole model was moved to the device")

    monkeypatch.setattr(Qwen2ForCausalLM, "to", refuse)


def test_only_the_sharding_moves_a_sharded_model(
    model_folder: Callable[[str], Path], world_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_moves(monkeypatch)
    made = learner(model_folder("qwen2"))
    made.read_reference(model_folder("qwen2"))
    for model in (made.model, made.reference):
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor)
            assert parameter.device_mesh.device_type == "cpu"


def test_the_mesh_is_that_of_the_ranks_device_also_beside_an_accelerator(
    model_folder: Callable[[str], Path], world_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda: torch.device("cuda"))
    made = learner(model_folder("qwen2"))
    assert {p.device_mesh.device_type for p in made.model.parameters() if isinstance(p, DTensor)} == {"cpu"}


def test_without_sharding_the_model_is_moved(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_moves(monkeypatch)
    with pytest.raises(AssertionError, match="whole model was moved"):
        learner(model_folder("qwen2"))
