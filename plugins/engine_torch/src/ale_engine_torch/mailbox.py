"""The way from event loops to the engine's thread, and back.

Commands wait in a queue until the thread runs them. Results are collected and go back with one wake-up for each event
loop. When the thread has ended, commands still in the queue get an error, so that no caller waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from ale.errors import EngineError

Command = Callable[[EngineError | None], None]
"""Work for the thread; its argument is None, or the error with which the thread has ended."""


class Mailbox:
    """Carries commands to the engine's thread, and results back to the event loops."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outbox: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._lock = threading.Lock()  # nothing enters the inbox once `_ended_by` is set
        self._ended_by: EngineError | None = EngineError("The engine 'torch' has not been started.")

    # -- for event loops

    def open(self) -> None:
        """Take commands, because the thread is about to start."""
        self._ended_by = None

    def check(self) -> None:
        """Raise the error with which the thread has ended."""
        if self._ended_by is not None:
            raise EngineError(*self._ended_by.args)

    def send(self, command: Command) -> None:
        """Have the thread run a command. Raises `EngineError` if it has ended."""
        with self._lock:
            self.check()
            self._inbox.put(command)

    async def call(self, work: Callable[[], None]) -> None:
        """Have the thread do some work, and wait for it. Raises what it raises."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def command(ended_by: EngineError | None) -> None:
            result: BaseException | None = ended_by
            if result is None:
                try:
                    work()
                except Exception as error:
                    result = error
            self.reply(future, result)

        self.send(command)
        await future

    # -- for the thread

    def reply(self, future: asyncio.Future[Any], result: Any) -> None:
        """Set a future's result or exception at the next `deliver`."""
        self._outbox.append((future.get_loop(), lambda: _set_future(future, result)))

    def wait(self) -> None:
        """Wait for a command and run it."""
        self._inbox.get()(None)

    def run_commands(self, ended_by: EngineError | None = None) -> None:
        """Run all commands that have arrived."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.get_nowait()(ended_by)

    def deliver(self) -> None:
        """Hand results over, with one wake-up for each event loop."""
        done, self._outbox = self._outbox, []
        for loop in {id(loop): loop for loop, _ in done}.values():
            calls = [call for owner, call in done if owner is loop]
            with contextlib.suppress(RuntimeError):  # that loop has been closed, and no caller waits any more
                loop.call_soon_threadsafe(_call_all, calls)

    def end(self, error: EngineError) -> None:
        """Refuse commands from now on, and those that have arrived."""
        with self._lock:
            self._ended_by = error
        self.run_commands(error)


def _set_future(future: asyncio.Future[Any], result: Any) -> None:
    """Set a future's result or exception, unless it was cancelled."""
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
