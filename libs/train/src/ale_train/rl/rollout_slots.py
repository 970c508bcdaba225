"""Slots for rollouts: each rollout holds one until its agent has ended, and then one of the slots for scoring.

Slots are given in the order in which rollouts first asked for one, so that a rollout that is made again comes before
younger ones; those that set `IN_FRONT` come before all. The limit may change at any time; what runs then goes on.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

Task = asyncio.Task[Any]
IN_FRONT: ContextVar[bool] = ContextVar("in_front", default=False)


class RolloutSlots:
    """`limit` rollouts run, and `scoring` rewards are computed at once. As a context manager it is the slot of the
    task that enters it."""

    def __init__(self, limit: int, scoring: int) -> None:
        self._limit = self._lowest = limit
        self._scorers = asyncio.Semaphore(scoring)
        self._ranks: WeakKeyDictionary[Task, int] = WeakKeyDictionary()
        self._next = count()
        self._held: set[Task] = set()
        self._waiting: list[tuple[int, int, Task, asyncio.Future[None]]] = []
        """Rank of the task, number of the request."""
        self.left = 0
        """How many slots have been given back."""

    @property
    def limit(self) -> int:
        """How many rollouts may run."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit, self._lowest = limit, min(limit, self._lowest)
        self._serve()

    def take_lowest(self) -> int:
        """Return the smallest limit since the last call."""
        lowest, self._lowest = self._lowest, self._limit
        return lowest

    @property
    def running(self) -> int:
        """How many rollouts hold a slot."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """How many rollouts wait for one."""
        return sum(not given.done() for *_, given in self._waiting)

    async def __aenter__(self) -> None:
        task = _current()
        given = asyncio.get_running_loop().create_future()
        number = next(self._next)
        rank = self._ranks.setdefault(task, -1 if IN_FRONT.get() else number)
        heapq.heappush(self._waiting, (rank, number, task, given))
        self._serve()
        try:
            await given
        except asyncio.CancelledError:
            given.cancel()
            self._leave(task)
            raise

    async def __aexit__(self, *exc: object) -> None:
        self._leave(_current())

    @asynccontextmanager
    async def scoring(self) -> AsyncIterator[None]:
        """Hold a slot for scoring, and give that of this task back once there is one: so there are at most as many
        sandboxes as slots of both kinds."""
        async with self._scorers:
            self._leave(_current())
            yield

    def _leave(self, task: Task) -> None:
        if task in self._held:
            self._held.remove(task)
            self.left += 1
        self._serve()

    def _serve(self) -> None:
        while self._waiting and (self._waiting[0][-1].done() or len(self._held) < self._limit):
            *_, task, given = heapq.heappop(self._waiting)
            if not given.done():
                self._held.add(task)
                given.set_result(None)


def _current() -> Task:
    task = asyncio.current_task()
    assert task is not None, "slots are for tasks"
    return task
