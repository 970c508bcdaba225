"""This module runs tests that are coroutines, each in a separate event loop with a deadline, and leaves no task behind.

No plugin of pytest is needed. A coroutine that waits for ever is cancelled at the deadline. If tests run in the main
thread, an alarm interrupts a call that blocks the loop and a thread that never ends; the alarm repeats until it takes
effect. Anything for which Python would still wait at its exit is listed in `stuck` and ends the process.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ale.specs.driver import Driver

DEADLINE_S = 120.0
"""Seconds that a test may take (`--ale-timeout`)."""
GRACE_S = 10.0
"""Seconds after the deadline at which the alarm rings, and between its ringing; no more than two deadlines."""
stuck: list[str] = []
"""What was broken off by the alarm: a thread may still hold the process."""


class _Stuck(BaseException):
    """Raised by the alarm. It is no subclass of `Exception`, so that a plugin cannot catch it by accident."""


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine function as a test that pytest can call."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        run_within_deadline(_leaving_no_task(test(*args, **fixtures)), asyncio.run)

    return run


def run_within_deadline(
    test: Coroutine[Any, Any, None], run_in_loop: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """Run a coroutine with `run_in_loop`, such as `asyncio.run`. One that hangs fails with a sentence."""
    outcome: list[BaseException | None] = []

    async def body() -> None:
        try:
            await _within_deadline(test)
        except BaseException as error:
            outcome.append(error)
            raise
        outcome.append(None)

    try:
        with _alarm(DEADLINE_S + _grace_s()):
            run_in_loop(body())
    except _Stuck as alarm:
        why = "a call blocked the event loop; blocking work belongs in a thread"
        if outcome and not isinstance(outcome[0], _Stuck):
            before = f"{outcome[0]}; and " if outcome[0] is not None else ""
            why = f"{before}a thread of the plugin's, such as asyncio.to_thread starts, never ends"
        stuck.append(why)
        raise AssertionError(f"{why} ({alarm})") from None


def _grace_s() -> float:
    return min(GRACE_S, 2 * DEADLINE_S)


def patience_s() -> float:
    """Seconds that a test waits for something that must happen: a quarter of its deadline."""
    return DEADLINE_S / 4


def equal_without_diff(found: object, wanted: object) -> bool:
    """`==` for large data: where a plain comparison fails, pytest on CI looks for the differences for minutes."""
    return found == wanted


async def _within_deadline(body: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S) as deadline:
            await body
    except TimeoutError:
        if deadline.expired():
            raise AssertionError(f"a call did not return within {DEADLINE_S:g} s") from None
        raise


async def _leaving_no_task(body: Awaitable[None]) -> None:
    before = asyncio.all_tasks()
    await body
    await require_no_other_task(before)


async def require_no_other_task(allowed: set[asyncio.Task[Any]]) -> None:
    """Wait a second for all tasks but these to end. Raises `AssertionError` if one remains."""
    for _ in range(20):
        left = asyncio.all_tasks() - allowed
        if not left:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the plugin must leave no asyncio task behind; there is {next(iter(left))}")


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _Stuck(f"broken off after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _grace_s())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def cancelled(call: Awaitable[Any], after_s: float) -> bool:
    """Cancel a call while it runs; returns False where it had ended before. The call must end promptly."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(after_s)
    if task.done():
        task.exception()  # or a late "never retrieved"
        return False
    task.cancel()
    began = asyncio.get_running_loop().time()
    done, _ = await asyncio.wait([task], timeout=20)
    assert done, "a cancelled call must end promptly; it still runs after 20 s"
    if task.cancelled():
        return True
    error = task.exception()
    assert error is None, f"a cancelled call must raise CancelledError, not {type(error).__name__}: {error}"
    took = asyncio.get_running_loop().time() - began
    assert took < 1, f"a cancelled call must end as cancelled; it went on for {took:.1f} s and returned"
    return False


async def fails_with(call: Awaitable[Any], *errors: type[BaseException], why: str) -> BaseException:
    """The error that a call must raise; `why` is the contract's rule."""
    try:
        found = await call
    except errors as error:
        return error
    except Exception as error:
        names = " or ".join(e.__name__ for e in errors)
        raise AssertionError(f"{why}: it must raise {names}, it raised {type(error).__name__}: {error}") from error
    raise AssertionError(f"{why}: it must raise {' or '.join(e.__name__ for e in errors)}, it returned {found!r:.200}")


async def close(driver: object) -> None:
    """Close a driver in the middle of its work."""
    assert isinstance(driver, Driver), "a plugin's class is made from ale.specs.driver.Driver"
    await driver.close()
