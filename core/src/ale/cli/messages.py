"""How a command shows warnings and tracebacks: without secrets, as notes of its display."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from types import TracebackType


def configure_messages(show: Callable[[str], None], redact: Callable[[str], str]) -> None:
    """Show warnings of ALE and its plugins as notes of the display; remove secrets from them and from tracebacks."""

    class ToDisplay(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(redact(f"{record.levelname.lower()}: {record.getMessage()}"))

    logger = logging.getLogger("ale")
    logger.handlers[:] = [ToDisplay(logging.WARNING)]
    logger.propagate = False

    def show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = show_traceback
