"""`ale report`: write the HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ale_report.page import write_report


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    output: Annotated[Path | None, typer.Option(help="Where to write; default: report.html in the run folder.")] = None,
) -> None:
    """Write one self-contained HTML page about a run."""
    print(write_report(run, output))
