"""Weights go to servers through folders in shared memory, by the names that the servers know."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ale_engines.weights.shared_memory import SHARED_MEMORY, make_weights_folder, write_tensors
from ale_engines.weights.tensor_files import read_folder


def test_weights_go_to_shared_memory_only_if_there_is_room() -> None:
    small, large = make_weights_folder(1), make_weights_folder(2**60)
    try:
        assert (small.parent == SHARED_MEMORY) == SHARED_MEMORY.is_dir()
        assert large.parent != SHARED_MEMORY
    finally:
        small.rmdir()
        large.rmdir()


@pytest.mark.parametrize("order", [("embed", "head"), ("head", "embed")])
def test_a_tied_weight_is_written_by_the_name_that_its_folder_has(order: tuple[str, str], tmp_path: Path) -> None:
    weight = torch.ones(3, 2)
    write_tensors(dict.fromkeys(order, weight) | {"norm": torch.ones(2)}, tmp_path / "1", {"embed", "norm"})
    assert sorted(read_folder(tmp_path / "1")) == ["embed", "norm"]
