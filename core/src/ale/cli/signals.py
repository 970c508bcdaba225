"""Ends a command's work by a signal: Ctrl-C and SIGTERM cancel it once, so that it cleans up, and a line says so at
once; the exit code is 130 or 143. A second signal ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ale.errors import AleError

T = TypeVar("T")


class Interrupted(AleError):
    """A signal ended the run; `exit_code` is 128 plus its number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"The run was interrupted by {signal.Signals(signal_number).name}.")
        self.exit_code = 128 + signal_number  # type: ignore[misc]


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
            print(
                f"{signal.Signals(number).name}: stopping, and cleaning up; press Ctrl-C again to end at once.",
                file=sys.stderr,
                flush=True,
            )
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
