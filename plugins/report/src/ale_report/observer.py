"""The observer `report`: it writes the page when the run has ended, however it ended."""

from __future__ import annotations

from ale.specs.events import Observer, hookimpl
from ale.store.run_store import DB_NAME
from ale_report.page import write_report


class ReportWriter(Observer):
    """Writes report.html into the run folder."""

    api_version = ">=1.0,<1.2"

    @hookimpl
    def ale_run_finished(self) -> None:
        """Write the page, and say where it is."""
        folder = self.context.run_dir
        if folder is not None and (folder / DB_NAME).exists():
            self.context.channel.event("note", text=f"report: {write_report(folder)}")
