"""Asks installed packages what a word of another framework is here, through the entry-point group `ale.hints`.

`keys` is a function of an unknown key's path and value that returns mistakes (paths and sentences), `plugins` one of
the kind and name of an unknown plugin that returns a sentence after a space. For other words they return None.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata
from typing import Any


def ask_hints(about: str, *arguments: Any) -> Any:
    """Return what the function `about` of the first package that knows the word says, or None."""
    for entry in metadata.entry_points(group="ale.hints", name=about):
        with suppress(Exception):  # the mistake itself is reported in any case
            if known := entry.load()(*arguments):
                return known
    return None
