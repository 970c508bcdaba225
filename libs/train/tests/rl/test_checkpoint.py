"""Checkpoints of the loop: which of them stay, and which one a resumed run goes on from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ale.errors import ConfigError, TrainerError
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory
from ale_testing.sample_batches import trajectory
from ale_train.rl.checkpoint import LoopState, restore_newest, write_checkpoint
from ale_train.rl.task_groups import FinishedGroup

DAMAGED = "damaged"


class Bench(SimpleNamespace):
    """A workbench whose trainer saves an empty folder, and reads no folder that holds a file `damaged`."""

    async def save(self, folder: Path) -> None:
        await asyncio.to_thread(folder.mkdir, parents=True)

    async def restore(self, folder: Path, version: int) -> None:
        if (folder / DAMAGED).exists():
            raise TrainerError(f"{folder} is damaged.")
        self.policy_folder = folder


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Any]:
    with RunStore.create(tmp_path) as store:
        made = Bench(folder=tmp_path, store=store, policy_folder=None, engine=SimpleNamespace(version=0))
        made.backend, made.progress = made, SimpleNamespace(note=lambda text: None)
        yield made


def state(step: int, *rollouts: Trajectory) -> LoopState:
    """The loop after a step, with a finished group of these rollouts and one that is not finished."""
    finished = FinishedGroup(0, rollouts, frozenset({"g"})).state()
    producer = {"open": [{"rollouts": None}], "finished": [finished]}
    return LoopState(step, step, producer, algorithm={}, guard={}, evaluations={}, seconds={})


def kept(bench: Any) -> list[str]:
    return sorted(path.name for path in (bench.folder / "checkpoints").iterdir() if path.is_dir())


async def test_the_checkpoint_that_a_run_goes_on_from_stays_beside_the_newest_ones(bench: Any) -> None:
    for step in (1, 2):
        await write_checkpoint(bench, state(step), keep=0)
    assert await restore_newest(bench) == state(2)
    for step in (3, 4, 5):
        await write_checkpoint(bench, state(step), keep=1)
    assert kept(bench) == ["step_2", "step_5"]


async def test_a_checkpoint_is_skipped_if_the_store_lacks_a_rollout_of_it(bench: Any) -> None:
    stored, lost = trajectory(1, reward=1.0), trajectory(2, reward=1.0)
    bench.store.add_trajectory(stored)
    await write_checkpoint(bench, state(1, stored), keep=0)
    await write_checkpoint(bench, state(2, stored, lost), keep=0)  # as if the power had gone before it was on the disk
    assert await restore_newest(bench) == state(1, stored)


async def test_if_no_checkpoint_can_be_read_nothing_is_undone(bench: Any) -> None:
    bench.store.add_trajectory(replace(trajectory(1, reward=1.0), policy_version=1))
    await write_checkpoint(bench, state(1), keep=0)
    (bench.folder / "checkpoints" / "step_1" / DAMAGED).touch()
    with pytest.raises(ConfigError, match=r"No checkpoint in .* can be read"):
        await restore_newest(bench)
    assert bench.store.count("rejected IS NULL") == 1
    (bench.folder / "checkpoints" / "step_1").rename(bench.folder / "removed")
    assert await restore_newest(bench) is None, "without a checkpoint the loop begins again"
    assert bench.store.count("rejected IS NULL") == 0
