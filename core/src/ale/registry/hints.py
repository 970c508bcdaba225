"""Asks installed packages what a word of another framework is here, through the entry-point group `ale.hints`.

`keys` is a function of an unknown key's path and value that returns mistakes (paths and sentences), `plugins` one of
the kind and name of an unknown plugin that returns a sentence after a space. For other words they return None."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ale.registry.search_path import path_state, read_entries


def ask_hints(about: str, *arguments: Any) -> Any:
    """Return what the function `about` of the first package that knows the word says, or None."""
    for entry in read_entries("ale.hints", path_state()):
        with suppress(Exception):  # the mistake itself is reported in any case
            if entry.name == about and (known := entry.load()(*arguments)):
                return known
    return None
