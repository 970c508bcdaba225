"""The optimizer's state in a checkpoint: what it says where it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ale.errors import ConfigError, TrainerError
from ale_torch.training import optimizer_state
from ale_torch.training.optimizer_state import read_entries, write_entries


@pytest.mark.parametrize("error", [MemoryError("no room"), torch.OutOfMemoryError("no room on the GPU")])
def test_what_runs_out_of_memory_is_no_damaged_checkpoint(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    write_entries(tmp_path, {"weight/step": torch.ones(2)})
    monkeypatch.setattr(optimizer_state, "load", fail)
    with pytest.raises(type(error), match="no room"):
        read_entries(tmp_path, lambda shapes: {"weight/step": torch.zeros(2)})


def test_entries_that_are_damaged_or_of_another_model_are_sentences(tmp_path: Path) -> None:
    write_entries(tmp_path, {"weight/step": torch.ones(2)})
    for other in ({"weight/step": torch.zeros(3)}, {"bias/step": torch.zeros(2)}):
        with pytest.raises(TrainerError, match="not of this model"):
            read_entries(tmp_path, lambda shapes, other=other: other)
    for file in tmp_path.glob("*.distcp"):
        file.write_bytes(b"x")
    with pytest.raises(ConfigError, match="damaged"):
        read_entries(tmp_path, lambda shapes: {"weight/step": torch.zeros(2)})
