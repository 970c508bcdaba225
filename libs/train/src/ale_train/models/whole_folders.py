"""Folders that exist whole or not at all: each is written beside its place and renamed, and renamed before it goes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def put_in_place(new: Path, target: Path) -> None:
    """Flush a folder to the disk, and rename it to its final name in place of what has that name."""
    for parent, _, files in os.walk(new):
        for name in files:
            flush(Path(parent) / name)
        flush(Path(parent))
    remove(target)
    new.rename(target)
    flush(target.parent)


def remove(path: Path) -> None:
    """Remove a folder, if it exists. It is renamed first, so that no half-removed one has its name."""
    hidden = path.with_name(f".{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    if path.exists():
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
