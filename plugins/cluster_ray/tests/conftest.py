"""What the tests without Ray share: actors in this process, which are called as Ray's are, and die as they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ale.specs.engine import Generation, PolicyVersion
from ale_engines.pool.continuation import NOTHING
from ale_ray import actor_lifecycle as actors
from ale_ray import engine_replica as replica
from ale_ray import rollout_workers as workers
from ale_ray.actor_messages import ActorClosed, Event, Outbox
from ale_ray.engine_actor import EngineFacts


async def until(holds: Callable[[], object]) -> None:
    """Let the event loop run until a condition holds. A moment of sleep is no such thing: on a busy machine it is over
    before what was begun has come anywhere."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - many conditions, none with an event of its own
            await asyncio.sleep(0.001)


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

    def remote(self, *args: Any) -> Reference:
        return Reference(asyncio.ensure_future(self._call(*args)))


class Reference:
    """The answer of an actor that is to come; not all are waited for."""

    def __init__(self, called: asyncio.Future[Any]) -> None:
        self._called, self._done = called, Future[Any]()
        called.add_done_callback(self._end)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._called.__await__()

    def future(self) -> Future[Any]:
        return self._done

    def _end(self, called: asyncio.Future[Any]) -> None:
        if called.cancelled():
            return
        if (error := called.exception()) is not None:
            self._done.set_exception(error)
        else:
            self._done.set_result(called.result())


class Started(list[Any]):
    """The actors that were started, in their order; `make` makes what the next one is."""

    make: Any = None

    def start(self, cls: type, name: str, options: Any) -> FakeActor:
        actor = FakeActor(self.make())
        self.append(actor)
        return actor


class FakeHost:
    """The actor of an engine; `answer` is what it samples, and without one it samples for ever. `moves` holds up all
    that it does once it has started."""

    def __init__(self, capabilities: frozenset[str] = frozenset({"real_tokens"})) -> None:
        self.capabilities = capabilities
        self.outbox = Outbox()
        self.answer: Any = None
        self.so_far = NOTHING
        """What it has sampled for each request that it has not answered."""
        self.known = 0
        """How much of that whoever asked last had."""
        self.gate, self.moves = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.moves.set()
        self.requests = 1
        """Those of rollout workers."""
        self.generations: list[str] = []
        """Those that were asked for."""
        self.models: list[Path | None] = []
        self.aborted: list[str] = []
        self.calls: list[str] = []
        """The methods that were called."""

    async def start(self, spec: bytes) -> EngineFacts:
        await self.gate.wait()
        return EngineFacts(2, 32, ("folder",), "node", 1, self.capabilities)

    async def load_model(self, folder: Path | None) -> EngineFacts:
        self.models.append(folder)
        return EngineFacts(4, 32, ("folder",), "node", 1, self.capabilities)

    async def load_weights(self, policy: PolicyVersion) -> None:
        await self.moves.wait()

    async def call(self, method: str) -> None:
        self.calls.append(method)
        await self.moves.wait()

    async def generate(self, name: str, request: Any) -> Any:
        self.generations.append(name)
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer

    async def sampled(self, known: Mapping[str, int]) -> dict[str, Generation]:
        found = {}
        for call, count in known.items():
            self.known = count
            parts = self.so_far.token_ids[count:], self.so_far.logprobs[count:], self.so_far.versions[count:]
            found[call] = Generation(*parts, "length")
        return found

    async def abort(self, name: str) -> None:
        self.aborted.append(name)

    async def state(self) -> tuple[dict[str, float], int]:
        await self.moves.wait()
        return {"sampled_tokens": 3.0}, self.requests

    async def messages(self) -> list[Any]:
        return await self.outbox.take()

    async def close(self) -> None:
        self.outbox.put(Event("closing", {}))
        self.outbox.put(ActorClosed())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Have actors be objects of this process."""
    found = Started()
    for module in (workers, replica):
        monkeypatch.setattr(module, "start_actor", found.start)
    monkeypatch.setattr(actors, "_kill", FakeActor.kill)
    monkeypatch.setattr(workers, "share", lambda value: value)
    return found
