"""The commands `ale report`, `ale trace` and `ale compare`. What does the work is imported when a command runs, so that
`ale --help` is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ale.cli.out_option import out_option

DIFFERENCES = "differences are from the first run, task by task"
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]


def report(
    run: Run,
    out: Annotated[Path | None, out_option("Page to write; default: report.html in the run folder.")] = None,
) -> None:
    """Write one self-contained HTML page about a run."""
    from ale_report.page import write_report

    print(write_report(run, out))


def trace(
    run: Run,
    out: Annotated[Path | None, out_option("File to write; default: trace.json in the run folder.")] = None,
) -> None:
    """Write who was in which state when, as a Chrome trace (open it in Perfetto)."""
    from ale_report.trace import write_trace

    print(write_trace(run, out))


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN RUN...", help="Run folders; the first is what the others are compared with."),
    ],
    out: Annotated[
        Path | None,
        out_option("Page to write; default: compare-TIME/compare.html beside the last run."),
    ] = None,
) -> None:
    """Success, reward and pass@k of runs side by side, differences task by task, and their curves."""
    from ale.cli.plugins_command import print_table
    from ale.errors import ConfigError
    from ale.store.output_files import check_file, file_at
    from ale_report.compare_page import new_page, write_comparison
    from ale_report.run_comparison import read_runs, shared_sets, table

    if len(runs) < 2:
        raise ConfigError("'ale compare' takes at least two run folders.")
    found = read_runs(runs)
    page = file_at(out, new_page(runs[-1]))
    check_file(page, "page")
    for name in shared_sets(found):
        print(f"{f'{name}: ' if name else ''}newest evaluations, with 95 % intervals over tasks; {DIFFERENCES}")
        print_table(table(found, name))
        print()
    print(write_comparison(found, page))
