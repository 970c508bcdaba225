"""What is written is what TensorBoard's own reader reads back."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ale.errors import ConfigError
from ale.registry.hooks import Hooks
from ale.specs.driver import DriverContext
from ale_tensorboard import TensorBoardConfig, TensorBoardTracker


def scalars(run: Path) -> list[Any]:
    """What TensorBoard shows of the success by now."""
    live = EventAccumulator(str(run / "tensorboard")).Reload()
    return list(live.Scalars("rl/success")) if "rl/success" in live.Tags()["scalars"] else []


async def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something comes to hold within 20 s."""
    for _ in range(200):
        if holds():
            return True
        await asyncio.sleep(0.1)
    return False


async def test_every_metric_of_every_stage_is_a_scalar_at_its_step(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(TensorBoardConfig(), DriverContext(run_id="r", run_dir=tmp_path))
    hooks = Hooks([("tensorboard", tracker)])
    async with tracker:
        for step in range(3):
            hooks.call("ale_step_finished", stage="rl", step=step, metrics={"success": step / 2, "loss": math.nan})
        hooks.call("ale_step_finished", stage="eval", step=-1, metrics={"success/write": 0.25})
        assert await eventually(lambda: len(scalars(tmp_path)) == 3), "numbers are on disk while the run goes on"
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in read.Scalars("rl/success")] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert [(e.step, e.value) for e in read.Scalars("eval/success/write")] == [(-1, 0.25)]
    assert sorted(read.Tags()["scalars"]) == ["eval/success/write", "rl/success"]


async def test_a_run_without_steps_leaves_nothing(tmp_path: Path) -> None:
    async with TensorBoardTracker(TensorBoardConfig(), DriverContext(run_dir=tmp_path)):
        pass
    assert not os.listdir(tmp_path)


def test_a_folder_of_ones_own_keeps_runs_apart(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(TensorBoardConfig(folder=tmp_path), DriverContext(run_id="r7"))
    assert tracker.folder == tmp_path / "r7"
    with pytest.raises(ConfigError, match="give it a 'folder'"):
        _ = TensorBoardTracker(TensorBoardConfig(), DriverContext()).folder


def test_a_folder_that_cannot_be_made_refuses_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    tracker = TensorBoardTracker(TensorBoardConfig(folder=tmp_path / "file/new"), DriverContext())
    with pytest.raises(ConfigError, match=r"The folder of the observer .tensorboard. .*new cannot be made: "):
        asyncio.run(tracker.start())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
