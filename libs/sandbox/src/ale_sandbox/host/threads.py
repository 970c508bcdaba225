"""Runs work in threads and waits for its end even if the caller is cancelled, so that the caller can then close what
the work uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `asyncio.to_thread` and wait for its end."""
    return await await_completion(asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs)))


async def await_completion(doing: asyncio.Future[T]) -> T:
    """Wait for `doing` and return its result; a cancellation takes effect when it is done."""
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():
            try:
                await asyncio.wait([doing])
            except asyncio.CancelledError:
                continue
        raise
