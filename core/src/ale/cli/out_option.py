"""The option `--out`, by which every command that writes a file or a folder is told where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer


def out_option(help: str, metavar: str = "FILE") -> Any:
    """Return the option with this help."""
    return typer.Option("--out", parser=read_path, metavar=metavar, help=help)


def read_path(text: str | Path) -> Path:
    """Return the path that a user has typed; `~` is the home folder. Raises `BadParameter` if it is empty, as from an
    unset variable: the current folder is written as a dot."""
    if not str(text):
        raise typer.BadParameter("it is empty; name a place, such as . for the current folder.")
    return Path(os.path.expanduser(text))
