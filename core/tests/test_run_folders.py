"""A run folder that cannot be made is a sentence, and why rollouts were rejected is in the sentence about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory


@pytest.mark.parametrize("place", ["a file", "below a file", "/proc"])
def test_a_run_folder_that_cannot_be_made_is_a_sentence(place: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    folder = {"a file": file, "below a file": file / "run", "/proc": Path("/proc/nothing/run")}[place]
    with pytest.raises(ConfigError, match=r"cannot be (made|written to): "):
        RunStore.create(folder)
    assert file.read_text() == "mine"


def test_the_reasons_of_rejections_are_counted_with_an_example(
    trajectory: Callable[..., Trajectory], tmp_path: Path
) -> None:
    with RunStore.create(tmp_path / "run") as store:
        for i in range(12):
            made = replace(trajectory(), id=str(i), rejected="no reward", rejected_because="The judge is away.")
            store.add_trajectory(replace(made, stage="rl", step=1))
        assert store.reasons("rl", 1) == "12 x no reward (The judge is away)"
