"""`ale run`: execute a run file, show its progress, and clean up however it ends.

Ctrl-C and SIGTERM cancel the run once: sandboxes are stopped, the summary is written, the exit code is 130 or 143. A
second signal ends the process at once; sandboxes die with it, and the next start removes what else they left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ale.cli.commands import after_run
from ale.cli.progress import display
from ale.config.load import load_run_config
from ale.config.preflight import which_half
from ale.errors import AleError, ConfigError
from ale.pipeline.run import RunResult
from ale.pipeline.run import run as run_pipeline
from ale.store.run_store import CONFIG_NAME

T = TypeVar("T")


class Interrupted(AleError):
    """A signal ended the run; `exit_code` is 128 plus its number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"The run was interrupted by {signal.Signals(signal_number).name}.")
        self.exit_code = 128 + signal_number  # type: ignore[misc]


def run(file: Path, overrides: list[str], only: str, source: Path | None, out: Path | None, resume: bool) -> int:
    """Run, and print what a newcomer wants to know; the last line is the path of summary.json."""
    chosen = which_half(only)
    if resume:
        if only != "all" or source is not None or out is not None:
            raise ConfigError("--resume goes on in its run folder; leave out --only, --from and --out.")
        file, out = file / CONFIG_NAME, file
    loaded = load_run_config(file, overrides)
    with display() as progress:
        configure_messages(progress.note, loaded.values.redact)
        result = run_until_signal(
            lambda: run_pipeline(loaded, progress, only=chosen, source=source, folder=out, resume=resume)
        )
    print_result(result)
    return 0


def run_until_signal(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine; the first SIGINT or SIGTERM cancels it, and a second one ends the process at once.

    Raises `Interrupted` if a signal ended it.
    """
    received: list[int] = []

    async def supervise() -> T:
        loop = asyncio.get_running_loop()
        task = loop.create_task(make())

        def on_signal(number: int) -> None:
            if received:
                os._exit(128 + number)
            received.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        return await task

    try:
        return asyncio.run(supervise())
    except asyncio.CancelledError:
        if received:
            raise Interrupted(received[0]) from None
        raise


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


def print_result(result: RunResult) -> None:
    """Print what was lost, what installed packages make of the run, and the summary."""
    failures = result.summary["failures"]
    if failures:
        counts = ", ".join(f"{count} {kind}" for kind, count in failures.items())
        print(f"rollouts that could not be used: {counts} (of {result.summary['rollouts']})")
    print(f"seconds: {result.summary['seconds']['total']:.0f} ({result.summary['rollouts']} rollouts)")
    for line in after_run(result.folder):
        print(line)
    print(result.summary_path)
