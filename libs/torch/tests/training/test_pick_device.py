"""The device that `trainer.device` stands for."""

from __future__ import annotations

import pytest
import torch

from ale.errors import ConfigError
from ale_torch.training.worker import pick_device


@pytest.mark.parametrize(("gpus", "ranks", "device"), [(0, 1, "cpu"), (0, 4, "cpu"), (1, 1, "cuda"), (4, 4, "cuda")])
def test_auto_takes_gpus_where_there_are_some(
    gpus: int, ranks: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert pick_device("auto", ranks) == device


def test_more_ranks_than_gpus_do_not_train_on_the_cpu_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"trainer\.ranks is 4 .*torch sees 2\. Set trainer\.ranks to at most 2"):
        pick_device("auto", 4)
    assert pick_device("cpu", 4) == "cpu"
