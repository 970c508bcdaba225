"""Reads the entry points of what is installed. Most packages have none of ours, and their files are not parsed: this is
faster than `importlib.metadata.entry_points`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib import metadata


def find_entry_points(groups: Collection[str]) -> Iterator[tuple[metadata.Distribution, list[metadata.EntryPoint]]]:
    """Yield each distribution on `sys.path` that has entry points of these groups, with them; one that is there twice
    comes twice. What cannot be read is left out, so that no package hides the others."""
    for distribution in metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if not any(f"[{group}]" in text for group in groups):
                continue
            entries = [entry for entry in distribution.entry_points if entry.group in groups]
        except Exception:  # whatever the files of another package contain
            continue
        yield distribution, entries
