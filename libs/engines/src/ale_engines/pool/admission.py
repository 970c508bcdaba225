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
from ale_engines.pool.routing import Place, Router

WINDOW = 64
"""How many of the oldest requests may take a slot that becomes free."""


@dataclass(order=True)
class Waiter:
    """A request that waits."""

    number: int
    session: str = field(compare=False)
    version: int = field(compare=False)
    place: asyncio.Future[Place] = field(compare=False)
    overtaken: int = field(default=0, compare=False)


class Admission:
    """The queue in front of the places of a router."""

    def __init__(self, refusal: Callable[[], EngineError | None]) -> None:
        """`refusal` returns the error of requests that no replica will ever serve, or None."""
        self.router = Router()
        self.open = True
        """Whether waiting requests are given places; it is False while the engine is paused or asleep."""
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

    async def enter(self, number: int, session: str, version: int) -> Place:
        """Wait for a slot of a place with at least this version of the weights, and take it; `leave` gives it back.

        Raises the refusal, also one that comes up while the request waits."""
        if (error := self._refusal()) is not None:
            raise error
        waiter = Waiter(number, session, version, asyncio.get_running_loop().create_future())
        insort(self._waiting, waiter)
        self.serve()
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if waiter.place.done() and not waiter.place.cancelled() and waiter.place.exception() is None:
                self.leave(waiter.place.result())
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    def leave(self, place: Place) -> None:
        """Give a slot back."""
        place.active -= 1
        self.serve()

    def serve(self) -> None:
        """Give free slots to requests that wait; call it after every change of a place."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if (error := self._refusal()) is not None:
            for waiter in self._waiting:
                if not waiter.place.done():
                    waiter.place.set_exception(error)
            self._waiting.clear()
        while self._waiting and self.open and (first := self._next()) is not None:
            place = self.router.choose(first.session, first.version)
            assert place is not None, "the next request is one that has a place"
            place.active += 1
            self._waiting.remove(first)
            first.place.set_result(place)

    async def wait_for_change(self) -> None:
        """Return after the next change of a place."""
        await self._changed.wait()

    def _next(self) -> Waiter | None:
        """Return the request that takes the next slot; None if no place is free."""
        places = self.router.places
        newest = max((place.version for place in places if place.free), default=None)
        if newest is None:
            return None
        oldest = islice(self._waiting, WINDOW)
        able = [waiter for waiter in oldest if waiter.version <= newest and not waiter.place.cancelled()]
        if not able:
            return None
        if able[0].overtaken < sum(place.slots for place in places if place.serving):
            for position, waiter in enumerate(able):
                if not self.router.prefers_waiting(waiter.session):
                    for other in able[:position]:
                        other.overtaken += 1
                    return waiter
        return able[0]
