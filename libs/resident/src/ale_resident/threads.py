"""Work in threads that is over when its caller goes on, also where that is cancelled: what the work uses may then be closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`, to its end."""
    return await to_its_end(asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs)))


async def to_its_end(doing: asyncio.Future[T]) -> T:
    """What `doing` gives. Who is cancelled meanwhile is so when that is done."""
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            try:
                await asyncio.wait([doing])
            except asyncio.CancelledError:
                continue
        raise
