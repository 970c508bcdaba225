"""This package shows a run at a terminal as one live line."""

from ale_live_progress.live_line import LiveLine, live_display

__all__ = ["LiveLine", "live_display"]
