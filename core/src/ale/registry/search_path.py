"""Describes the folders in which Python looks for packages, so that metadata is read once for each state of them."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import metadata


def path_state() -> tuple[tuple[str, int], ...]:
    """Return the state of `sys.path`: an install changes the time of one of its folders, and so this state."""
    state = []
    for place in sys.path:
        try:
            state.append((place, os.stat(place or ".").st_mtime_ns))
        except OSError:
            state.append((place, 0))
    return tuple(state)


@lru_cache(maxsize=4)
def read_entries(group: str, state: tuple[tuple[str, int], ...]) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group, which are read once for each state of `sys.path`."""
    return tuple(metadata.entry_points(group=group))
