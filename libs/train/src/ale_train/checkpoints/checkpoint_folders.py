"""Folders of checkpoints: `checkpoints/<name>_N`, each whole or absent; `checkpoints/LATEST` names the newest."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ale.errors import ConfigError, TrainerError, TrainerLost
from ale_train.models.whole_folders import flush, put_in_place

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


def finish_checkpoint(making: Path, target: Path) -> None:
    """Put a checkpoint in its place, where a damaged or undone one may be; `LATEST` then names it."""
    put_in_place(making, target)
    latest = target.parent / LATEST
    new = latest.with_suffix(".new")
    new.write_text(f"{target.name}\n")
    flush(new)
    new.replace(latest)
