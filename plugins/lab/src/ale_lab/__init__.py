"""The lab: comparisons of algorithms, run through the `ale` command line over several seeds (`ale lab`).

1. An *experiment* (`catalogue`) is a recipe (a run file), arms (what each changes), and what is drawn and tabled.
2. A seed has one warm start, from which all its arms begin (`plan`); runs that are finished are not made again (`running`), nor
   those that stand in the data of an earlier lab (`known`).
3. What the runs' databases hold becomes series (`reading`), these become means with bootstrap intervals (`intervals`), and
   these a picture, a table and JSON (`drawing`, `results`).
"""

from __future__ import annotations

from typing import Any

from ale.specs.events import Observer, hookimpl

__all__ = ["Lab"]


class Lab(Observer):
    """Brings the command; a run that names it as an observer hears nothing from it."""

    api_version = ">=1.1,<1.3"

    @hookimpl
    def ale_commands(self, app: Any) -> None:
        """Add `ale lab`."""
        from ale_lab.commands import lab_app

        app.add_typer(lab_app, name="lab")
