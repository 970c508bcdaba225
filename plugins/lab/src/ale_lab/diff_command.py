"""The command `ale config diff`; what does its work is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run file or a run folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """Print the settings in which two run files or run folders differ; the exit code is 1 if there are any."""
    from ale_lab.config_diff import print_differences

    raise typer.Exit(int(print_differences(first, second)))
