"""What the tests without Ray share: actors in this process, which are called as Ray's are, and die as they do."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from ale_ray import actors, replica, workers


class FakeActor:
    """It calls the methods of an object; once it was killed, all its calls fail."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.dead = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return Remote(partial(self._call, name))

    def kill(self) -> None:
        self.dead.set()

    async def _call(self, name: str, *args: Any) -> Any:
        from ray.exceptions import ActorDiedError

        if self.dead.is_set():
            raise ActorDiedError
        call = asyncio.ensure_future(getattr(self.made, name)(*args))
        dead = asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait([call, dead], return_when=asyncio.FIRST_COMPLETED)
            if self.dead.is_set():
                raise ActorDiedError
            return call.result()
        finally:
            call.cancel()
            dead.cancel()


class Remote:
    """A method of an actor."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def remote(self, *args: Any) -> asyncio.Future[Any]:
        called = asyncio.ensure_future(self._call(*args))
        called.add_done_callback(lambda done: done.cancelled() or done.exception())  # not all answers are waited for
        return called


class Started(list[Any]):
    """The actors that were started, in their order; `make` makes what the next one is."""

    make: Any = None

    def start(self, cls: type, name: str, options: Any) -> FakeActor:
        actor = FakeActor(self.make())
        self.append(actor)
        return actor


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Have actors be objects of this process."""
    found = Started()
    for module in (workers, replica):
        monkeypatch.setattr(module, "start_actor", found.start)
    monkeypatch.setattr(actors, "_kill", FakeActor.kill)
    return found
