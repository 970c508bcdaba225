"""`ale compare`: runs side by side, as tables and as a page with their curves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DIFFERENCES = "differences are from the first run, task by task"


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN RUN...", help="Run folders; the first is what the others are compared with."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Page to write; default: compare.html in the last run's folder.")
    ] = None,
) -> None:
    """Success, reward and pass@k of runs side by side, differences task by task, and their curves."""
    from ale.cli.plugins_command import print_table
    from ale.errors import ConfigError
    from ale_report.compare import read_runs, shared_sets, table
    from ale_report.compare_page import PAGE_NAME, write_comparison

    if len(runs) < 2:
        raise ConfigError("'ale compare' takes at least two run folders.")
    found = read_runs(runs)
    for name in shared_sets(found):
        print(f"{f'{name}: ' if name else ''}newest evaluations, with 95 % intervals over tasks; {DIFFERENCES}")
        print_table(table(found, name))
        print()
    print(write_comparison(found, output or runs[-1] / PAGE_NAME))
