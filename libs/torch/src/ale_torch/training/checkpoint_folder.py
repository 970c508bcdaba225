"""Folders of checkpoints and of published weights: whole or absent.

A checkpoint is a model folder, tokenizer included, so that it serves as `model.path` too. Beside the weights lie
`trainer_state.pt` (random state, version, settings), `optimizer/` (see `optimizer_state.py`), and `reference/`, a model
folder, if there is a reference policy. It is written under another name and renamed at the end. Over several ranks all
make the calls, and rank 0 alone makes and renames folders, which all must see: ranks on several nodes need a shared
file system.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ale.errors import ConfigError
from ale_torch.ranks.world import World

STATE_FILE = "trainer_state.pt"
OPTIMIZER_FOLDER = "optimizer"
REFERENCE_FOLDER = "reference"
APPEAR_S = 90.0
"""How long a new folder may take until other nodes see it; NFS remembers for up to a minute that there was none."""


@contextmanager
def write_atomically(folder: Path, world: World) -> Iterator[Path]:
    """Yield a new folder beside `folder` to write into; it replaces `folder` only at the end. Raises `ConfigError` on
    all ranks if one of them does not see it."""
    new, old = _beside(folder)
    if world.rank == 0:
        recover_checkpoint(folder)
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir(parents=True)
    world.barrier()
    seen = world.gather(_appears(new))
    if not all(seen):
        raise ConfigError(
            f"Rank {seen.index(False)} of {world.size} does not see the folder {new}, which rank 0 has made. Put it on "
            "a file system that all nodes share: the run's folder, and where it saves."
        )
    yield new
    world.barrier()
    if world.rank == 0:
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    world.barrier()


def recover_checkpoint(folder: Path) -> None:
    """Restore the old checkpoint if a process died while it was replacing it."""
    _, old = _beside(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def write_state(folder: Path, version: int, device: torch.device, settings: dict[str, Any]) -> None:
    """Write the version, the random state, and the settings that the checkpoint can be restored with."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    state = {"version": version, "settings": settings, "rng": torch.get_rng_state(), "cuda_rng": cuda}
    torch.save(state, folder / STATE_FILE)


def read_state(folder: Path) -> dict[str, Any]:
    """Return what `write_state` wrote. Raises `ConfigError`."""
    file = folder / STATE_FILE
    if not file.is_file():
        raise ConfigError(f"{folder} is not a checkpoint of a trainer: it holds no {STATE_FILE}.")
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises many types
        raise ConfigError(f"{file} cannot be read; the checkpoint is damaged, use an earlier one.") from error
    missing = sorted({"version", "settings", "rng", "cuda_rng"} - state.keys())
    if missing:
        raise ConfigError(
            f"{file} lacks {', '.join(missing)}: another release of ALE wrote it. Begin a run from the checkpoint's "
            f"weights alone (model.path={folder})."
        )
    return state


def use_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Go on with the random numbers of a checkpoint."""
    torch.set_rng_state(state["rng"])
    if state["cuda_rng"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng"], device)


def _appears(folder: Path) -> bool:
    """Return whether the folder is there, soon."""
    until = time.monotonic() + APPEAR_S
    while not folder.is_dir():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def _beside(folder: Path) -> tuple[Path, Path]:
    """Return the temporary paths of the new and the old checkpoint, in the same file system."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
