"""Folders of checkpoints: `checkpoints/<name>_N`, each whole or absent; `checkpoints/LATEST` names the newest."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ale.errors import ConfigError, TrainerError, TrainerLost

log = logging.getLogger("ale.training")
T = TypeVar("T")
CHECKPOINTS, LATEST = "checkpoints", "LATEST"
STEP = "step"
"""The name of the checkpoints of reinforcement learning."""


def complete(folder: Path, name: str) -> list[tuple[int, Path]]:
    """Return the checkpoints of a name with their steps, the newest first."""
    pattern = re.compile(rf"{re.escape(name)}_(\d+)")
    found = [(int(match[1]), path) for path in folder.glob(f"{name}_*") if (match := pattern.fullmatch(path.name))]
    return sorted(found, reverse=True)


def step_checkpoint(run: Path, step: int) -> Path:
    """Return the place of the checkpoint of a step of reinforcement learning."""
    return run / CHECKPOINTS / f"{STEP}_{step}"


async def restore_newest_whole(
    folder: Path, name: str, restore: Callable[[Path], Awaitable[T]], what: str
) -> tuple[int, Path, T] | None:
    """Restore the newest checkpoint of a name that can be read; returns its step, its folder, and what `restore` made
    of it. None if there is no checkpoint. Raises `ConfigError` if there are some and none can be read: the fault may be
    the machine's, so `what`, a name for sentences, does not begin anew by itself."""
    found, fault = complete(folder, name), ""
    for step, path in found:
        try:
            return step, path, await restore(path)
        except TrainerLost:  # its processes died; the checkpoint may be whole
            raise
        except (ConfigError, TrainerError, OSError, ValueError) as error:
            log.warning("the checkpoint %s cannot be read, so an earlier one is used: %s", path, error)
            fault = fault or str(error)
    if found:
        raise ConfigError(
            f"No checkpoint in {folder} can be read (the newest one: {fault}) Nothing was changed: resume again once "
            f"that is mended, or remove that folder to let {what} begin again."
        )
    return None


def put_in_place(making: Path, target: Path) -> None:
    """Flush a folder to the disk and rename it to its final name; `LATEST` then names it."""
    for parent, _, files in os.walk(making):
        for name in files:
            _flush(Path(parent) / name)
        _flush(Path(parent))
    remove(target)  # it was damaged, or undone
    making.rename(target)
    _flush(target.parent)
    latest = target.parent / LATEST
    new = latest.with_suffix(".new")
    new.write_text(f"{target.name}\n")
    _flush(new)
    new.replace(latest)


def remove(path: Path) -> None:
    """Remove a checkpoint, if it exists. It is renamed first, so that no half-removed one has its name."""
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
