"""Finds processes, so that a test can kill the server of a plugin, or see that all of a plugin's have ended. It reads
Linux's /proc."""

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


def running(pids: set[int]) -> set[int]:
    """Those of the processes that have not ended."""
    return {pid for pid in pids if _state(pid) not in ("", "Z", "X")}


def with_argument(word: str) -> set[int]:
    """The processes of this machine that have this word as an argument."""
    pids = {int(folder.name) for folder in Path("/proc").glob("[0-9]*")}
    return {pid for pid in pids if word in command_line(pid)}


def command_line(pid: int) -> list[str]:
    """The program of a process with its arguments; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    return []


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.update(map(int, file.read_text().split()))
    return found
