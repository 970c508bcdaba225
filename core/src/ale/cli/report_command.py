"""`ale report`: write the HTML page about a run."""

from __future__ import annotations

from pathlib import Path

from ale.view.report import write_report


def report(run: Path, output: Path | None) -> None:
    """Write the report; its path is the last line."""
    print(write_report(run, output))
