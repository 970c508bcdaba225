"""Tests as coroutines: each in an event loop of its own, with a deadline, and nobody left behind.

No plugin of pytest is needed for it. A coroutine that waits for ever is cancelled at the deadline. A call that blocks the
loop itself, and a thread that never ends, are broken off by an alarm, where tests run in the main thread; the alarm rings
again until it is heard. What Python would wait for at its end all the same is in `stuck`, and ends the process.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

DEADLINE_S = 120.0
"""Seconds that a test may take (`--ale-timeout`)."""
GRACE_S = 10.0
"""Seconds after the deadline at which the alarm rings, and between its ringing; no more than two deadlines."""
stuck: list[str] = []
"""What was broken off by the alarm: a thread may still hold the process."""


class _Stuck(BaseException):
    """The alarm. No `Exception`, so that a plugin that survives all of these does not survive it."""


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A coroutine function as a test that pytest can call."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        outcome: list[BaseException | None] = []

        async def body() -> None:
            try:
                await _within_deadline(test(*args, **fixtures))
            except BaseException as error:
                outcome.append(error)
                raise
            outcome.append(None)

        try:
            with _alarm(DEADLINE_S + _grace_s()):
                asyncio.run(body())
        except _Stuck as alarm:
            why = "a call blocked the event loop; blocking work belongs in a thread"
            if outcome and not isinstance(outcome[0], _Stuck):
                before = f"{outcome[0]}; and " if outcome[0] is not None else ""
                why = f"{before}a thread of the plugin's, such as asyncio.to_thread starts, never ends"
            stuck.append(why)
            raise AssertionError(f"{why} ({alarm})") from None

    return run


def _grace_s() -> float:
    return min(GRACE_S, 2 * DEADLINE_S)


def patience_s() -> float:
    """Seconds that a test waits for what must come: a quarter of its deadline."""
    return DEADLINE_S / 4


def same(found: object, wanted: object) -> bool:
    """`==` for large data: where a plain comparison fails, pytest on CI looks for the differences for minutes."""
    return found == wanted


async def _within_deadline(body: Awaitable[None]) -> None:
    before = asyncio.all_tasks()
    try:
        async with asyncio.timeout(DEADLINE_S) as deadline:
            await body
    except TimeoutError:
        if deadline.expired():
            raise AssertionError(f"a call did not return within {DEADLINE_S:g} s") from None
        raise
    for _ in range(20):
        left = asyncio.all_tasks() - before
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
    """Cancel a call in its middle; False where it was done before. It must end promptly and as cancelled."""
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
