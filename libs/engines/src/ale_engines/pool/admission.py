"""Requests wait here for a slot of a replica, in the order in which they arrived.

A slot that becomes free goes to the oldest request. There is one exception, so that prefix caches stay of use when all
slots are taken: if the oldest request's home is another replica that serves, a request close behind it may take the
slot instead, one that belongs there or has no home yet. Each request is overtaken at most as often as there are slots.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, islice

from ale.errors import EngineError
from ale_engines.pool.routing import Router, Target

WINDOW = 64
"""How many of the oldest requests may take a slot that becomes free."""


@dataclass(order=True)
class Waiter:
    """A request that waits."""

    number: int
    session: str = field(compare=False)
    version: int = field(compare=False)
    target: asyncio.Future[Target] = field(compare=False)
    overtaken: int = field(default=0, compare=False)


class Admission:
    """The queue in front of the targets of a router."""

    def __init__(self, refusal: Callable[[], EngineError | None]) -> None:
        """`refusal` returns the error of requests that no replica will ever serve, or None."""
        self.router = Router()
        self.open = True
        """Whether waiting requests are given targets; it is False while the engine is paused or asleep."""
        self._refusal = refusal
        self._waiting: list[Waiter] = []
        self._changed = asyncio.Event()
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def take_number(self) -> int:
        """Return the number of a new request; one that has to wait again keeps its number, and thereby its turn."""
        return next(self._numbers)

    async def enter(self, number: int, session: str, version: int) -> Target:
        """Wait for a slot of a target with at least this version of the weights, and take it; `leave` gives it back.

        Raises the refusal, also one that comes up while the request waits."""
        if (error := self._refusal()) is not None:
            raise error
        waiter = Waiter(number, session, version, asyncio.get_running_loop().create_future())
        insort(self._waiting, waiter)
        self.serve()
        try:
            return await waiter.target
        except asyncio.CancelledError:
            if waiter.target.done() and not waiter.target.cancelled() and waiter.target.exception() is None:
                self.leave(waiter.target.result())
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    def leave(self, target: Target) -> None:
        """Give a slot back."""
        target.active -= 1
        self.serve()

    def serve(self) -> None:
        """Give free slots to requests that wait; call it after every change of a target."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if (error := self._refusal()) is not None:
            for waiter in self._waiting:
                if not waiter.target.done():
                    waiter.target.set_exception(error)
            self._waiting.clear()
        while self._waiting and self.open and (first := self._next()) is not None:
            target = self.router.choose(first.session, first.version)
            assert target is not None, "the next request is one that has a target"
            target.active += 1
            self._waiting.remove(first)
            first.target.set_result(target)

    async def wait_for_change(self) -> None:
        """Return after the next change of a target."""
        await self._changed.wait()

    def _next(self) -> Waiter | None:
        """Return the request that takes the next slot; None if no target is free."""
        targets = self.router.targets
        newest = max((target.version for target in targets if target.free), default=None)
        if newest is None:
            return None
        oldest = islice(self._waiting, WINDOW)
        able = [waiter for waiter in oldest if waiter.version <= newest and not waiter.target.cancelled()]
        if not able:
            return None
        if able[0].overtaken < sum(target.slots for target in targets if target.serving):
            for position, waiter in enumerate(able):
                if not self.router.prefers_waiting(waiter.session):
                    for other in able[:position]:
                        other.overtaken += 1
                    return waiter
        return able[0]
