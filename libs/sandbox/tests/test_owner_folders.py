"""The folders of owners that have ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ale_sandbox.host.owned_folders import remove_folder


@pytest.mark.parametrize("seen", [1, 3, 20])
def test_a_folder_that_another_process_removes_meanwhile_is_gone(
    seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.walk

    def walk_a_folder_that_goes(path: Path) -> Iterator[Any]:
        for number, found in enumerate(walk(path), 1):
            if number == seen:
                shutil.rmtree(path)
            yield found

    for name in range(40):
        (tmp_path / "base" / f"{name % 10}" / f"{name}").mkdir(parents=True)
    monkeypatch.setattr(os, "walk", walk_a_folder_that_goes)
    remove_folder(tmp_path / "base")
    assert not (tmp_path / "base").exists()
