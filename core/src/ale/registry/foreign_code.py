"""Calls code that is not ours (a plugin, a function of the user's), which may raise anything.

1. `KeyboardInterrupt` is Ctrl-C and passes. `SystemExit`, `GeneratorExit` and a library's own `BaseException` are
   errors like any other; in a task of asyncio they would end the process.
2. A `CancelledError` is a cancellation only if somebody has asked for it, which the task counts (`Task.cancelling`).
   Any other is an error: client libraries let one out when a scope of their own ends. A task group would take it for a
   task that has ended well, and whoever waits for its result would wait for ever.
3. `run_apart` gives an awaitable a task of its own, so that what it does to its task (it may cancel it) stays there. It
   also cancels for certain: a cancellation that the awaitable swallows is raised when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ale.errors import PluginError

T = TypeVar("T")


class StrayEnd(Exception):
    """An awaitable has cancelled its own task."""


class Cancellations:
    """Those of the current task since this object was made."""

    def __init__(self) -> None:
        try:
            self._task = asyncio.current_task()
        except RuntimeError:  # no event loop runs here
            self._task = None
        self._before = self._count()

    @property
    def any(self) -> bool:
        """Whether somebody has asked for a cancellation."""
        return self._count() > self._before

    def _count(self) -> int:
        return 0 if self._task is None else self._task.cancelling()


@contextmanager
def catch_all() -> Iterator[list[BaseException]]:
    """Catch what foreign code raises, and add it to the list. Ctrl-C and genuine cancellations pass."""
    cancellations, caught = Cancellations(), list[BaseException]()
    try:
        yield caught
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        if cancellations.any:
            raise
        caught.append(error)
    except BaseException as error:
        caught.append(error)


async def run_apart(awaitable: Awaitable[T]) -> T:
    """Await it in a task of its own, and return its result or raise what it raises. A genuine cancellation
    reaches it, and is raised once it has ended, however it ends."""
    cancellations = Cancellations()
    apart = asyncio.create_task(_outcome_of(awaitable))  # `await_chain` of the watchdog follows this name
    try:
        (result, error) = await apart
    except asyncio.CancelledError:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()  # it may not have begun
        if cancellations.any:
            raise
        raise StrayEnd("it has cancelled its own task") from None
    if cancellations.any:
        raise asyncio.CancelledError from error
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # without an error it is there


async def _outcome_of(awaitable: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """Await it, and return its result or what it raised: a task that raises `SystemExit` stops the loop."""
    try:
        return await awaitable, None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, error


@contextmanager
def no_silent_end(what: str) -> Iterator[None]:
    """Turn what a task group takes for a good end, or the event loop for the end of the process, into a `PluginError`
    that begins with `what`. Errors that are plain exceptions pass."""
    with catch_all() as caught:
        yield
    for error in caught:
        if isinstance(error, Exception | BaseExceptionGroup):
            raise error
        raise PluginError(f"{what} was ended by {type(error).__name__}: {error}.") from error
