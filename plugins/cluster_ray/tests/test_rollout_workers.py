"""RolloutWorkers are started, told, started again and removed so that none gets an episode without the newest table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ale.errors import EngineError
from ale_ray import actor_lifecycle as actors_module
from ale_ray import rollout_workers as workers_module
from ale_ray.actor_calls import ActorLost
from ale_ray.actor_messages import ActorClosed, Event, Outbox
from ale_ray.call_batching import CallBatcher, CallReceiver
from ale_ray.rollout_workers import RESTARTS, RolloutWorkers, WorkerHandle
from ale_ray.routed_engine import EngineTable
from ale_testing.recording_channel import RecordingChannel

from .conftest import FakeActor, Started, until


class FakeWorker:
    """A rollout worker, as far as `RolloutWorkers` needs one. `gate` holds up its start, `slow` each table, and `moves`
    every sign of life; its episodes have no end."""

    def __init__(self, fails: bool = False, node: str = "node") -> None:
        self.fails, self.node = fails, node
        self.outbox = Outbox()
        self.gate, self.slow, self.moves = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.slow.set()
        self.moves.set()
        self.models: list[Any] = []
        self.given: list[int] = []
        """The tables that it was given, also one that it has not taken yet."""
        self.tables: list[int] = []
        self._callee = CallReceiver(self, self.outbox)

    async def exchange(self, pickled: bytes) -> list[Any]:
        return await self._callee.exchange(pickled)

    async def start(self, spec: bytes) -> tuple[str, int]:
        await self.gate.wait()
        if self.fails:
            raise EngineError("no sandbox works here")
        return self.node, 1

    async def use_model(self, folder: Any) -> None:
        self.models.append(folder)

    async def use_engines(self, table: EngineTable) -> None:
        self.given.append(table.number)
        await self.slow.wait()
        self.tables.append(table.number)

    async def act(self, name: str) -> None:
        await asyncio.Event().wait()

    async def ping(self) -> None:
        await self.moves.wait()

    async def close(self) -> None:
        self.outbox.put(Event("closing", {}))
        self.outbox.put(ActorClosed())


class Run:
    """RolloutWorkers, and what they say to the run."""

    def __init__(self) -> None:
        spec: Any = None
        self.received: list[Any] = []
        self.notes: list[str] = []
        self.channel = RecordingChannel()
        self.workers = RolloutWorkers(
            spec,
            {},
            slots=4,
            start_s=60.0,
            receive=self.received.append,
            note=self.notes.append,
            event=self.channel.event,
        )

    @property
    def states(self) -> list[str]:
        return [worker.state for worker in self.workers]

    async def until(self, holds: Callable[[], bool]) -> None:
        await until(holds)


@pytest.fixture
async def run(started: Started) -> AsyncIterator[Run]:
    started.make = FakeWorker
    found = Run()
    yield found
    await found.workers.close()
    assert all(actor.dead.is_set() for actor in started)


def table(number: int) -> EngineTable:
    return EngineTable(number, (), 0, "")


def worker_of(run: Run, position: int = 0) -> WorkerHandle:
    found: WorkerHandle = [*run.workers][position]
    return found


def line_of(run: Run) -> CallBatcher:
    line = worker_of(run).line
    assert line is not None
    return line


async def test_a_worker_has_what_changed_while_it_started_before_it_gets_an_episode(run: Run, started: Started) -> None:
    slow = FakeWorker()
    slow.gate.clear()
    slow.slow.clear()
    started.make = lambda: slow
    await run.workers.use_engines(table(1))
    adding = asyncio.create_task(run.workers.add(1))
    await run.until(lambda: len(started) == 1)
    await run.workers.use_engines(table(2))
    slow.gate.set()
    await run.until(lambda: slow.given == [2])
    await run.workers.use_engines(table(3))
    await run.workers.use_model(None)
    assert not worker_of(run).serving
    slow.slow.set()
    await adding
    assert slow.tables == [2, 3], "the first was replaced before it could be sent"
    assert slow.models == [None]
    assert run.states == ["serving"]


async def test_a_worker_that_died_is_started_once_however_many_notice(run: Run, started: Started) -> None:
    await run.workers.add(1)
    worker, actor = worker_of(run), started[0]
    actor.kill()
    for _ in range(3):
        run.workers.suspect(worker, actor)
    await run.until(lambda: run.states == ["serving"])
    run.workers.suspect(worker, actor)
    await asyncio.sleep(0.01)
    assert len(started) == 2
    assert run.notes == ["worker 0 has died and is started again; its episodes begin anew."]


async def test_a_worker_that_does_not_take_a_table_is_started_again(
    run: Run, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "TABLE_S", 0.05)
    await run.workers.add(1)
    started[0].made.slow.clear()
    await run.workers.use_engines(table(1))
    await run.until(lambda: run.states == ["serving"])
    assert started[1].made.tables == [1]
    assert run.notes == ["worker 0 does not answer any more and is started again; its episodes begin anew."]


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at workers often, and wait briefly."""
    monkeypatch.setattr(workers_module, "LOOK_S", 0.001)
    monkeypatch.setattr(actors_module, "SILENT_S", 2.0)


@pytest.mark.usefixtures("quick_looks")
async def test_a_worker_that_stands_still_is_started_again_and_its_episodes_are_lost(
    run: Run, started: Started
) -> None:
    await run.workers.add(1)
    acting = line_of(run).ask("act", "episode")
    await asyncio.sleep(0.01)
    started[0].made.moves.clear()
    with pytest.raises(ActorLost):
        await asyncio.wait_for(acting, 30)
    await run.until(lambda: run.states == ["serving"])
    assert run.notes == ["worker 0 does not answer any more and is started again; its episodes begin anew."]
    assert len(started) == 2
    assert not started[1].dead.is_set()


class Talking:
    """A line by which something has come whenever one looks, up to ten times."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def heard(self) -> int:
        self.looks += 1
        return min(self.looks, 10)


@pytest.mark.usefixtures("quick_looks")
async def test_a_worker_from_which_something_comes_is_not_asked_whether_it_lives(run: Run) -> None:
    line: Any = Talking()
    asked_at: list[int] = []
    ping = SimpleNamespace(remote=lambda: asked_at.append(line.looks))  # None cannot be waited for: that ends the looks
    await run.workers._look(WorkerHandle("worker 0", 1), SimpleNamespace(ping=ping), line)
    assert asked_at == [11]


async def test_a_worker_that_leaves_is_told_of_new_engines_as_long_as_it_has_episodes(
    run: Run, started: Started
) -> None:
    await run.workers.add(1)
    place = await run.workers.enter("group")
    removing = asyncio.create_task(run.workers.remove())
    await asyncio.sleep(0)
    assert run.states == ["leaving"]
    await run.workers.use_engines(table(7))
    assert started[0].made.tables == [7]
    run.workers.leave(place)
    assert await removing == "worker 0"


async def test_a_message_that_cannot_be_taken_at_all_leaves_no_episode_waiting(run: Run, started: Started) -> None:
    await run.workers.add(1)
    acting = line_of(run).ask("act", "episode")

    async def broken(pickled: bytes) -> None:
        raise OSError("Ray is gone")

    started[0].made.exchange = broken
    started[0].made.outbox.put(Event("the last one", {}))
    with pytest.raises(ActorLost, match="Ray is gone"):
        await asyncio.wait_for(acting, 30)


@pytest.mark.usefixtures("quick_looks")
async def test_a_worker_that_stands_still_while_it_leaves_holds_up_nothing(run: Run, started: Started) -> None:
    await run.workers.add(1)
    place = await run.workers.enter("group")
    removing = asyncio.create_task(run.workers.remove())
    acting = line_of(run).ask("act", "episode")
    await asyncio.sleep(0.01)
    started[0].made.moves.clear()
    with pytest.raises(ActorLost):
        await asyncio.wait_for(acting, 30)
    run.workers.leave(place)  # as the episode's caller does
    assert await removing == "worker 0"
    assert len(started) == 1


async def test_workers_of_which_one_does_not_start_are_not_added(run: Run, started: Started) -> None:
    made = iter([FakeWorker(), FakeWorker(fails=True)])
    started.make = lambda: next(made)
    with pytest.raises(EngineError, match="no sandbox works here"):
        await run.workers.add(2)
    assert len(run.workers) == 0
    assert all(actor.dead.is_set() for actor in started)


async def test_a_worker_that_never_starts_again_is_given_up_and_removed_first(run: Run, started: Started) -> None:
    await run.workers.add(2)
    started.make = lambda: FakeWorker(fails=True)
    started[0].kill()
    await run.until(lambda: "failed" in run.states)
    assert len(started) == 2 + RESTARTS
    assert run.notes[-1] == "worker 0 is given up: it was started 3 times in a row in vain."
    assert await run.workers.remove() == "worker 0"
    assert run.states == ["serving"]
    started[1].kill()
    await run.until(lambda: run.states == ["failed"])
    with pytest.raises(EngineError, match=r"No rollout worker is left\. no sandbox works here\."):
        await run.workers.enter("group")


async def test_a_worker_that_is_removed_while_it_is_started_again_does_not_come_back(
    run: Run, started: Started
) -> None:
    await run.workers.add(1)
    held = FakeWorker()
    held.gate.clear()
    started.make = lambda: held
    started[0].kill()
    await run.until(lambda: len(started) == 2)
    await run.workers.remove()
    held.gate.set()
    await asyncio.sleep(0.01)
    assert len(run.workers) == 0
    assert started[1].dead.is_set()


async def test_a_worker_is_removed_after_its_episodes_and_its_last_messages_arrive(run: Run, started: Started) -> None:
    await run.workers.add(1)
    place = await run.workers.enter("group")
    removing = asyncio.create_task(run.workers.remove())
    await asyncio.sleep(0.01)
    assert not removing.done()
    run.workers.leave(place)
    assert await removing == "worker 0"
    assert run.received == [Event("closing", {})]


async def test_events_say_when_each_worker_had_episodes_and_on_which_node_it_was(run: Run, started: Started) -> None:
    await run.workers.add(1)
    place = await run.workers.enter("group")
    run.workers.report_states()
    run.workers.leave(place)
    started.make = lambda: FakeWorker(node="elsewhere")
    started[0].kill()
    run.workers.suspect(worker_of(run), started[0])
    await run.until(lambda: run.states == ["serving"])
    await run.workers.close()
    found = [
        [(one["name"], one["place"], [state for state, _, _ in one["spans"]]) for one in data["workers"]]
        for kind, data in run.channel.events
        if kind == "worker_states"
    ]
    assert found == [
        [("worker 0", "node · cpu", ["idle", "busy"])],
        [("worker 0", "node · cpu", ["busy", "idle", "lost"]), ("worker 0", "elsewher · cpu", ["idle"])],
    ]


async def test_who_waits_for_a_worker_is_refused_when_they_are_closed(run: Run) -> None:
    await run.workers.add(1)
    for _ in range(4):
        await run.workers.enter("group")
    waiting = asyncio.create_task(run.workers.enter("group"))
    await asyncio.sleep(0)
    await run.workers.close()
    with pytest.raises(EngineError, match="closed"):
        await waiting


async def test_a_worker_that_cannot_be_asked_for_is_given_up(
    run: Run, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(cls: type, name: str, options: Any) -> FakeActor:
        raise ActorLost(f"Ray does not start {name}.")

    await run.workers.add(1)
    monkeypatch.setattr(workers_module, "start_actor", refuse)
    started[0].kill()
    await run.until(lambda: run.states == ["failed"])
