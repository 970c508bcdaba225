"""How a command shows warnings and tracebacks: without secrets, as notes of its display, equal ones counted."""

from __future__ import annotations

import logging
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from types import TracebackType


def configure_messages(show: Callable[[str], None], redact: Callable[[str], str]) -> None:
    """Show warnings of ALE and its plugins as notes of the display; remove secrets from them and from tracebacks."""

    counts: Counter[str] = Counter()

    class ToDisplay(logging.Handler):
        """It shows equal warnings the 1st, 10th, 100th time; `extra={"same_as": ...}` says what makes two equal."""

        def emit(self, record: logging.LogRecord) -> None:
            same = str(getattr(record, "same_as", record.getMessage()))
            counts[same] += 1
            count = counts[same]
            if count == 10 ** (len(str(count)) - 1):
                often = f" ({count} times by now)" if count > 1 else ""
                show(redact(f"{record.levelname.lower()}: {record.getMessage()}{often}"))

    logger = logging.getLogger("ale")
    logger.handlers[:] = [ToDisplay(logging.WARNING)]
    logger.propagate = False

    def show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = show_traceback
