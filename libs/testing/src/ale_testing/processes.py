"""Finds the processes below this one, so that a test can kill the server of a plugin. It reads Linux's /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def below(pid: int | None = None) -> set[int]:
    """The descendants of a process, or of this one."""
    children = _children(os.getpid() if pid is None else pid)
    return children.union(*(below(child) for child in children))


def servers_below(others: set[int]) -> list[int]:
    """The processes below this one that are not among `others`, without those that only watch over a server: of a
    child with children of its own only these count."""
    found = []
    for child in _children(os.getpid()) - others:
        found += sorted(below(child)) or [child]
    return found


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.update(map(int, file.read_text().split()))
    return found
