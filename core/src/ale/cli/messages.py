"""How a command shows warnings and tracebacks: without secrets, as notes of its display, equal ones counted.

Warnings of ALE and its plugins (the loggers below `ale`) are shown, and so are those that nothing else would show: of
a user's code and of libraries, by `logging` without a handler of their own or by `warnings.warn`.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

MOST_COUNTED = 10_000
"""Different warnings whose number is kept; a server may run for weeks."""


class CountedWarnings(logging.Handler):
    """It shows equal warnings the 1st, 10th, 100th time; those that differ in an id alone are equal, too.

    `extra={"same_as": ...}` of a log call says what else makes two equal."""

    def __init__(self, show: Callable[[str], None], redact: Callable[[str], str]) -> None:
        super().__init__(logging.WARNING)
        self._show = show
        self._redact = redact
        self._counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record of a logger."""
        try:
            text = record.getMessage()
        except Exception as error:  # the arguments do not fit the text
            text = f"{record.msg} ({error})"
        self.show(f"{record.levelname.lower()}: {text}", str(getattr(record, "same_as", text)))

    def show(self, text: str, same_as: str) -> None:
        """Show a text, unless it is one of many."""
        same = re.sub(r"[0-9a-f]{8,}", "", same_as)
        if len(self._counts) >= MOST_COUNTED:
            self._counts.clear()
        self._counts[same] += 1
        count = self._counts[same]
        if count == 10 ** (len(str(count)) - 1):
            self._show(self._redact(text + (f" ({count} times by now)" if count > 1 else "")))


def configure_messages(show: Callable[[str], None], redact: Callable[[str], str]) -> None:
    """Show warnings as notes of the display; remove secrets from them and from tracebacks."""
    counted = CountedWarnings(show, redact)
    logger = logging.getLogger("ale")
    logger.handlers[:] = [counted]
    logger.propagate = False
    logging.lastResort = counted  # for loggers without a handler; a user's `logging.basicConfig` works as ever

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        place = f"{filename}, line {lineno}"
        counted.show(f"warning: {message} ({category.__name__}, {place})", place)

    warnings.showwarning = show_warning

    def show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = show_traceback
