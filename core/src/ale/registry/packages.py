"""Says which of ALE's own packages brings a plugin or a command, for what is not installed.

The table `packages.json` is made from the packages' pyproject.toml files by `scripts/write_package_table.py`. It is
data, so that a hint can name a package without this package knowing what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(files("ale.registry").joinpath("packages.json").read_text(encoding="utf-8"))
    return table


def our_packages() -> Sequence[str]:
    """Return the names of all packages of ALE, installed or not."""
    packages: Sequence[str] = _table()["packages"]
    return packages


def our_plugins(kind: str) -> Mapping[str, str]:
    """Return the plugins of a kind that packages of ALE bring: name -> package."""
    plugins: Mapping[str, str] = _table()["plugins"].get(kind, {})
    return plugins


def find_command(words: Sequence[str]) -> tuple[str, str] | None:
    """Return the command that the words begin with, and the package of ALE that brings it; None if none does."""
    commands: Mapping[str, str] = _table()["commands"]
    typed = (" ".join(words[:count]) for count in (2, 1))  # `config show` before `config`
    return next(((command, commands[command]) for command in typed if command in commands), None)
