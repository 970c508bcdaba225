"""Checkpoints of the loop: each holds trainer, producer, buffer and algorithm as they were at one moment.

    checkpoints/step_N/            what the trainer saved: a model folder with its optimizer and random state
    checkpoints/step_N/loop.json   everything else (`LoopState`)
    checkpoints/LATEST             the name of the newest one

1. A checkpoint is whole or absent: it is written under another name, flushed to the disk and renamed. The state is
   copied before the first await, so that nothing in it belongs to a later moment than the rest.
2. On resume, what happened after the checkpoint is undone in the store, in one transaction: what was trained on may be
   trained on again, and rollouts with tokens of later versions are rejected, since the weights of that number will be
   others. Rollouts of earlier versions alone are found again when they are asked for (`RunStore.find_rollout`).
3. A checkpoint that is damaged is skipped, with a warning, for the one before. If there are some and none can be read,
   the run is refused and nothing is undone: the fault may be the machine's.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.rollout.episode import RL_STAGE
from ale.store.run_store import REJECT, RunStore
from ale_train.checkpoints.checkpoint_folders import (
    CHECKPOINTS,
    STEP,
    complete,
    finish_checkpoint,
    restore_newest_whole,
    step_checkpoint,
)
from ale_train.models.export import ADAPTER
from ale_train.models.whole_folders import remove
from ale_train.workbench.workbench import Workbench

LOOP_FILE = "loop.json"
LOST_VERSION = "lost_version"
SAVED_FINAL = "saved.final"
"""The fact in the store that the final policy is saved; its value is the policy's version."""


@dataclass(frozen=True)
class LoopState:
    """The loop's state after step `step`, whose weights are `version`; all values are JSON."""

    step: int
    version: int
    producer: dict[str, Any]
    algorithm: dict[str, Any]
    guard: dict[str, Any]
    evaluations: dict[str, Any]
    seconds: dict[str, float]
    evaluation_due: tuple[str, int] | None = None
    """Label and step of an evaluation that had begun and not ended."""
    total_s: float = 0.0
    """The seconds of the run until then, with those of its earlier parts."""


async def write_checkpoint(bench: Workbench, state: LoopState, keep: int) -> None:
    """Write a checkpoint, and remove all but the newest `keep` and the one that the run goes on from, whose files
    trainer and engine may read again; 0: none is removed."""
    text = json.dumps(vars(state))
    folder = bench.folder / CHECKPOINTS
    making, target = folder / f".making_{state.step}", step_checkpoint(bench.folder, state.step)
    await bench.backend.save(making)
    (making / LOOP_FILE).write_text(text)
    await bench.store.sync()  # the rollouts that it names, and what was trained on
    await asyncio.to_thread(finish_checkpoint, making, target)
    for _, old in complete(folder, STEP)[keep:] if keep else ():
        if old not in (target, bench.policy_folder):
            await asyncio.to_thread(remove, old)


async def restore_newest(bench: Workbench) -> LoopState | None:
    """Restore trainer and engine from the newest checkpoint that is whole, and undo in the store what came after it;
    returns the rest of its state. None if there is no checkpoint: then everything after the stages before is undone.
    Raises `ConfigError` if there are some and none can be read."""
    folder = bench.folder / CHECKPOINTS
    for leftover in folder.glob(".*"):
        await asyncio.to_thread(shutil.rmtree, leftover, ignore_errors=True)

    async def restore(path: Path) -> LoopState:
        state = read_state(path)
        _check_rollouts(bench.store, state)
        await bench.restore(path, state.version)
        return state

    found = await restore_newest_whole(folder, STEP, restore, "reinforcement learning")
    if found is None:
        undo_after(bench.store, bench.engine.version, 0)
        return None
    _, _, state = found
    undo_after(bench.store, state.version, state.step)
    if state.total_s > float(bench.store.meta("seconds") or 0):  # it was killed, so that nothing counted them
        bench.store.set_meta({"seconds": str(state.total_s)})
    if state.step:  # else it is a fork that begins
        bench.progress.note(f"The run goes on after step {state.step}.")
    return state


def set_final_aside(bench: Workbench, step: int, version: int) -> None:
    """Rename the final policy of a finished run that goes on after this step and version: it is that of a step now."""
    saved = bench.store.meta(SAVED_FINAL)
    name = f"step_{step}" if saved in (None, str(version)) else f"version_{saved}"
    for suffix in ("", f"_{ADAPTER}"):
        final = bench.folder / "model" / f"final{suffix}"
        if final.is_dir():
            target = final.with_name(f"{name}{suffix}")
            remove(target)
            final.rename(target)
    bench.store.change(("DELETE FROM meta WHERE key = ?", [(SAVED_FINAL,)]))


def read_state(checkpoint: Path) -> LoopState:
    """Read the loop's state in a checkpoint. Raises `OSError` or `ValueError`."""
    try:
        return LoopState(**json.loads((checkpoint / LOOP_FILE).read_text()))
    except TypeError as error:  # it has other keys
        raise ValueError(f"{LOOP_FILE} is not of this release: {error}") from None


def seconds_so_far(store: RunStore) -> float:
    """Return the seconds of the run until now, with those of its earlier parts."""
    began = "SELECT MAX(time) FROM events WHERE kind IN ('run_started', 'run_resumed')"
    return time.time() - float(store.rows(began)[0][0]) + float(store.meta("seconds") or 0)


def _check_rollouts(store: RunStore, state: LoopState) -> None:
    """Raise `ConfigError` if the store lacks a rollout of a checkpoint, as after a power cut."""
    groups = (*state.producer["open"], *state.producer["finished"])
    ids = {id for group in groups for id in group["rollouts"] or ()}
    lost = len(ids) - store.count("id IN (SELECT value FROM json_each(?))", (json.dumps(sorted(ids)),))
    if lost:
        raise ConfigError(f"{lost} of its rollouts are not in the run's database.")


def undo_after(store: RunStore, version: int, step: int) -> None:
    """Undo in the store what happened after this version and step."""
    began_after = "SELECT id FROM trajectories WHERE rejected IS NULL AND policy_version > ?"
    lost = [id for (id,) in store.rows(began_after, (version,))]
    untrained = "id NOT IN (SELECT trajectory FROM trained WHERE version <= ?)"
    began_before = f"stage = ? AND rejected IS NULL AND policy_version <= ? AND {untrained}"
    for t in store.trajectories(began_before, (RL_STAGE, version, version)):
        if any(v > version for chunk in t.chunks for v in chunk.versions):
            lost.append(t.id)
    store.change(
        ("DELETE FROM trained WHERE version > ?", [(version,)]),
        ("DELETE FROM metrics WHERE stage = ? AND step > ?", [(RL_STAGE, step)]),
        ("DELETE FROM metrics WHERE (stage = 'eval' OR stage LIKE 'eval.%') AND step > ?", [(step,)]),
        (REJECT, [(LOST_VERSION, id) for id in lost]),
    )
