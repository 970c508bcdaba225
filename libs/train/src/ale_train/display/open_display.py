"""Chooses the display that fits the destination of stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ale_train.display.plain_lines import PlainLines
from ale_train.workbench.progress import Progress


@contextmanager
def open_display() -> Iterator[Progress]:
    """Show a live line at a terminal, plain lines elsewhere, while the block runs."""
    if not sys.stderr.isatty():
        yield PlainLines()
        return
    from ale_train.display.live_line import live_display  # it imports rich

    with live_display() as progress:
        yield progress
