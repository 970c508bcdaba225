"""Checkpoints of the loop: each is one cut through trainer, producer, buffer and algorithm, whole or absent.

    checkpoints/step_N/            what the trainer saved: a model folder with its optimizer and random state
    checkpoints/step_N/loop.json   everything else (`Cut`)
    checkpoints/LATEST             the name of the newest one

1. A checkpoint is written beside, flushed to the disk and renamed. The state is copied before the first await, so that
   nothing in it belongs to a later moment than the rest.
2. On resume, what happened after the cut is undone in the store, in one transaction: what was trained on may be trained
   on again, and rollouts with tokens of later versions are rejected, since the weights of that number will be others.
   Rollouts of earlier versions alone are found again when they are asked for (`RunStore.find_rollout`).
3. A checkpoint that is damaged is skipped, with a warning, for the one before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.errors import ConfigError, TrainerError
from ale.pipeline.workbench import Workbench
from ale.rollout.episode import RL_STAGE
from ale.store.run_store import REJECT, RunStore

log = logging.getLogger("ale.rl")
CHECKPOINTS, LOOP_FILE, LATEST = "checkpoints", "loop.json", "LATEST"
LOST_VERSION = "lost_version"


@dataclass(frozen=True)
class Cut:
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


async def write_checkpoint(bench: Workbench, cut: Cut, keep: int) -> None:
    """Write a checkpoint, and remove all but the newest `keep` and the one that the run goes on from, whose files
    trainer and engine may read again; 0: none is removed."""
    text = json.dumps(vars(cut))
    folder = bench.folder / CHECKPOINTS
    making, target = folder / f".making_{cut.step}", folder / f"step_{cut.step}"
    await bench.backend.save(making)
    (making / LOOP_FILE).write_text(text)
    await asyncio.to_thread(_put_in_place, making, target)
    for _, old in _complete(folder)[keep:] if keep else ():
        if old != bench.policy_folder:
            await asyncio.to_thread(_remove, old)


async def restore_newest(bench: Workbench) -> Cut | None:
    """Restore trainer and engine from the newest checkpoint that is whole, and undo in the store what came after it;
    returns the rest of its state. None if there is no checkpoint: then everything after the stages before is undone."""
    folder = bench.folder / CHECKPOINTS
    for leftover in folder.glob(".*"):
        await asyncio.to_thread(shutil.rmtree, leftover, ignore_errors=True)
    for _, path in _complete(folder):
        try:
            cut = Cut(**json.loads((path / LOOP_FILE).read_text()))
            await bench.restore(path, cut.version)
        except (ConfigError, TrainerError, OSError, ValueError, TypeError) as error:
            log.warning("the checkpoint %s is damaged, so an earlier one is used: %s", path, error)
            continue
        undo_after(bench.store, cut.version, cut.step)
        bench.progress.note(f"The run goes on after step {cut.step}.")
        return cut
    undo_after(bench.store, bench.engine.version, 0)
    return None


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


def _complete(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints of a run with their steps, the newest first."""
    found = [(int(name[1]), path) for path in folder.glob("step_*") if (name := re.fullmatch(r"step_(\d+)", path.name))]
    return sorted(found, reverse=True)


def _put_in_place(making: Path, target: Path) -> None:
    for parent, _, files in os.walk(making):
        for name in files:
            _flush(Path(parent) / name)
        _flush(Path(parent))
    _remove(target)  # it was damaged, or undone
    making.rename(target)
    _flush(target.parent)
    latest = target.parent / LATEST
    new = latest.with_suffix(".new")
    new.write_text(f"{target.name}\n")
    _flush(new)
    new.replace(latest)


def _remove(path: Path) -> None:
    """Remove a checkpoint that may be there: none that is half removed has its name."""
    hidden = path.with_name(f".{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    if path.exists():
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
