"""When things happen that are not urgent: at whole multiples of a period, at which all that is due happens at once.

A process that sleeps pays most for waking up: of two actor calls, the one right after the other costs a fifth. So what
several tasks or actors do every now and then is done at the same moments."""

from __future__ import annotations

import asyncio
import math


def next_beat(time: float, period_s: float) -> float:
    """Return the first whole multiple of a period that is at least half a period later than a time."""
    return period_s * math.ceil(time / period_s + 0.5)


async def wait_for_beat(period_s: float) -> None:
    """Sleep until the next beat of the event loop's clock."""
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(next_beat(now, period_s) - now)
