"""Timer coalescing: periodic work of several tasks and actors is done at the same moments, the whole multiples of a
period.

Waking up is most of the cost of a small piece of work: of two actor calls, the second one costs a fifth if it follows
the first at once."""

from __future__ import annotations

import asyncio
import math


def next_tick(time: float, period_s: float) -> float:
    """Return the first whole multiple of a period that is at least half a period later than a time."""
    return period_s * math.ceil(time / period_s + 0.5)


async def wait_for_tick(period_s: float) -> None:
    """Sleep until the next tick of the event loop's clock."""
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(next_tick(now, period_s) - now)
