"""The arguments of `ale report` and `ale trace`. What does the work is imported when a command runs, so that
`ale --help` is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]


def report(
    run: Run,
    output: Annotated[Path | None, typer.Option(help="Where to write; default: report.html in the run folder.")] = None,
) -> None:
    """Write one self-contained HTML page about a run."""
    from ale_report.page import write_report

    print(write_report(run, output))


def trace(
    run: Run,
    output: Annotated[Path | None, typer.Option(help="Where to write; default: trace.json in the run folder.")] = None,
) -> None:
    """Write who was in which state when, as a Chrome trace (open it in Perfetto)."""
    from ale_report.trace import write_trace

    print(write_trace(run, output))
