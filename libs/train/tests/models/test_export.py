"""What other programs load of a checkpoint is its model, and takes no second room for the weights."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ale_train.models.export import export_model

WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
SMALL = ("config.json", "model.safetensors.index.json", "tokenizer.json", "chat_template.jinja")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints" / "step_1"
    (folder / "optimizer").mkdir(parents=True)
    for name in (*SMALL, "loop.json"):
        (folder / name).write_text("{}")
    for name in WEIGHTS:
        save_file({"a": np.zeros(4, np.float32)}, folder / name)
    (folder / "trainer_state.pt").write_bytes(b"state")
    return folder


def test_weights_are_on_the_disk_once_and_files_that_people_edit_twice(checkpoint: Path, tmp_path: Path) -> None:
    final = tmp_path / "model" / "final"
    for _ in range(2):  # the second time in place of the first
        export_model(checkpoint, final, (tmp_path / "base", None))
    assert {path.name for path in final.iterdir()} == {*WEIGHTS, *SMALL}
    assert all(os.path.samefile(final / name, checkpoint / name) for name in WEIGHTS)
    assert not any(os.path.samefile(final / name, checkpoint / name) for name in SMALL)


def test_other_weights_saved_in_the_folder_are_not_those_of_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    final = tmp_path / "model" / "final"
    export_model(checkpoint, final, (tmp_path / "base", None))
    save_file({"a": np.ones(4, np.float32)}, final / WEIGHTS[0])
    assert load_file(final / WEIGHTS[0])["a"].sum() == 4
    assert load_file(checkpoint / WEIGHTS[0])["a"].sum() == 0


def test_weights_are_copied_where_files_cannot_be_linked(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("links are not supported")

    monkeypatch.setattr(os, "link", refuse)
    final = tmp_path / "model" / "final"
    export_model(checkpoint, final, (tmp_path / "base", None))
    assert all((final / name).read_bytes() == (checkpoint / name).read_bytes() for name in WEIGHTS)
    assert not any(os.path.samefile(final / name, checkpoint / name) for name in WEIGHTS)
