"""Engines on the trainer's devices: when they sleep, and that the trainer has its devices whenever it trains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ale.errors import ConfigError, EngineError
from ale_testing.async_tests import require_no_other_task
from ale_train.rl import device_sharing
from ale_train.rl.device_sharing import SharedDevices

SLOTS = 4
BATCH = 8


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the policy at once."""
    monkeypatch.setattr(device_sharing, "LOOK_S", 0.001)


class Engines:
    """Engines that fall asleep and wake up, each time when `gate` is open; `did` says what they did."""

    def __init__(self, count: int) -> None:
        self.names = [f"engine {number}" for number in range(count)]
        self.asleep: set[str] = set()
        self.failed: set[str] = set()
        self.did: list[str] = []
        self.fault: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def replica_statuses(self) -> list[SimpleNamespace]:
        states = ["failed" if name in self.failed else "serving" for name in self.names]
        return [SimpleNamespace(name=name, slots=SLOTS, state=s) for name, s in zip(self.names, states, strict=True)]

    async def shrink(self, names: Sequence[str]) -> None:
        self.did.append("shrinks")
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        assert not self.asleep & {*names}
        self.asleep |= {*names}
        self.did.append("shrunk")

    async def expand(self, names: Sequence[str]) -> None:
        self.did.append("expands")
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        assert self.asleep >= {*names}
        self.asleep -= {*names}
        self.did.append("expanded")


class Scene:
    """A trainer that lends its devices to some of its engines, and waits for batches that the test makes."""

    def __init__(self, engines: int, lent: int) -> None:
        self.gives_memory = False
        self.engines = Engines(engines)
        self.ready = self.at_engines = 0
        engine: Any = self.engines
        self.states: list[str] = []
        self.notes: list[str] = []
        self.devices = SharedDevices(
            engine,
            count=lent,
            batch_size=BATCH,
            ready=lambda: self.ready,
            at_engines=lambda: self.at_engines,
            sleep=self.sleep,
            enter=self.states.append,
            note=self.notes.append,
        )
        self.batch: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.broken_off = False

    async def sleep(self) -> bool:
        self.engines.did.append("trainer sleeps")
        return self.gives_memory

    async def next_batch(self) -> str:
        try:
            return await self.batch
        except asyncio.CancelledError:
            self.broken_off = True
            raise

    def wait(self) -> asyncio.Task[str]:
        """The trainer waits for the next batch."""
        if self.batch.done():
            self.batch = asyncio.get_running_loop().create_future()
        return asyncio.create_task(self.devices.wait_for(self.next_batch()))

    async def update(self, waited_s: float = 0.0) -> None:
        """The trainer trains, after it has waited for so long."""
        self.devices.waited_s = waited_s
        await self.devices.finish_update(sampling_follows=True, save_follows=False)

    async def take(self, ready: int = 0) -> None:
        """Wait for a batch that is there soon."""
        waiting = self.wait()
        self.ready = ready
        self.batch.set_result("batch")
        assert await waiting == "batch"


@asynccontextmanager
async def scene(engines: int, lent: int) -> AsyncIterator[Scene]:
    """A scene that leaves no task behind."""
    before = asyncio.all_tasks()
    made = Scene(engines, lent)
    try:
        yield made
    finally:
        await made.devices.close()
        await require_no_other_task(before)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_the_trainer_has_its_devices_when_it_has_its_batch() -> None:
    async with scene(3, 2) as s:
        s.engines.gate.clear()
        waiting = s.wait()
        s.batch.set_result("batch")
        await until(lambda: s.engines.did)
        await asyncio.sleep(0.01)
        assert not waiting.done(), "the engines have not fallen asleep"
        assert s.states == ["switch"]
        s.engines.gate.set()
        assert await waiting == "batch"
        assert s.engines.asleep == {"engine 1", "engine 2"}, "the last ones"


async def test_they_sleep_before_the_batch_is_there_if_the_rest_has_room_for_what_is_left() -> None:
    async with scene(2, 1) as s:
        waiting = s.wait()
        await asyncio.sleep(0.01)
        assert s.engines.did == [], "no group is ready"
        s.ready, s.at_engines = BATCH, SLOTS + 1
        await asyncio.sleep(0.01)
        assert s.engines.did == [], "the rest has too few slots"
        s.at_engines = SLOTS
        await until(lambda: s.engines.asleep)
        assert not waiting.done()
        s.batch.set_result("batch")
        assert await waiting == "batch"
        assert s.states == [], "it did not wait for its devices"
        assert s.engines.did == ["shrinks", "shrunk"]


async def test_they_are_lent_again_in_the_background_where_the_trainer_waits_for_longer_than_that_costs() -> None:
    async with scene(2, 1) as s:
        await s.take()
        s.engines.gate.clear()
        await s.update(waited_s=100.0)
        found = s.devices.metrics()
        assert found["lent"] == 1.0
        assert found["switch_s"] > 0
        await until(lambda: s.engines.did[-1] == "expands")
        waiting = s.wait()
        s.batch.set_result("batch")
        await asyncio.sleep(0.01)
        assert s.engines.did[-1] == "expands", "an engine that wakes up cannot fall asleep yet"
        assert not waiting.done()
        s.engines.gate.set()
        assert await waiting == "batch"
        assert s.engines.did == ["shrinks", "shrunk", "trainer sleeps", "expands", "expanded", "shrinks", "shrunk"]


async def test_they_sleep_on_where_the_trainer_does_not_wait() -> None:
    async with scene(2, 1) as s:
        await s.take()
        await s.update()
        s.devices.metrics()
        await s.take()
        await s.update()
        assert s.states == ["switch"], "the second batch was waited for without them"
        assert s.engines.did == ["shrinks", "shrunk"]
        assert s.devices.metrics() == {"lent": 0.0, "switch_s": 0.0}
        await s.devices.serve_all()
        assert s.engines.asleep == set(), "what comes after the loop has all of them"


async def test_they_are_lent_only_once_the_trainer_has_used_them_for_what_comes_first() -> None:
    async with scene(2, 1) as s:
        await s.take()
        s.devices.waited_s = 100.0
        s.devices.decide()
        assert s.devices.metrics()["lent"] == 1.0, "soon"
        assert not await s.devices.take_back_to_wake(), "it still has them"
        assert s.engines.asleep == {"engine 1"}
        await s.devices.lend_if_due()
        await until(lambda: not s.engines.asleep)


async def test_they_sleep_on_while_the_next_batch_is_ready() -> None:
    async with scene(2, 1) as s:
        await s.take(ready=BATCH)
        await s.update(waited_s=100.0)
        assert s.engines.did == ["shrinks", "shrunk"]


async def test_if_all_engines_are_lent_they_serve_whenever_the_trainer_does_not_train() -> None:
    async with scene(2, 2) as s:
        waiting = s.wait()
        s.ready = BATCH
        await asyncio.sleep(0.01)
        assert s.engines.did == [], "nobody else would finish the batch"
        s.batch.set_result("batch")
        await waiting
        assert s.engines.asleep == {"engine 0", "engine 1"}
        await s.update()
        assert s.engines.asleep == set(), "at once, as nothing is sampled before"
        await s.take()
        await s.devices.serve_evaluation()
        assert s.engines.asleep == set(), "an evaluation goes on before the weights are published"
        await s.update()
        await s.take()
        assert s.engines.did == ["shrinks", "shrunk", "trainer sleeps", "expands", "expanded"] * 2 + [
            "shrinks",
            "shrunk",
        ]


async def test_a_trainer_that_gives_memory_back_never_wakes_beside_the_engines() -> None:
    async with scene(2, 2) as s:
        s.gives_memory = True
        assert await s.devices.take_back_to_wake()
        assert s.engines.asleep == {"engine 0", "engine 1"}
        assert not await s.devices.take_back_to_wake(), "it has them"
        s.devices.lend()
        await s.take()
        await s.update()
        assert s.engines.asleep == set()
        sleeps_alone = ["trainer sleeps", "expands", "expanded"]
        assert s.engines.did == ["trainer sleeps", *["shrinks", "shrunk", *sleeps_alone] * 2]


async def test_engines_that_do_not_wake_are_an_error_at_once_and_not_only_once_a_batch_is_there() -> None:
    async with scene(2, 2) as s:
        await s.take()
        s.engines.fault = EngineError("It does not wake up.")
        s.devices.lend()
        with pytest.raises(EngineError, match="It does not wake up"):
            async with asyncio.timeout(60):
                await s.wait()


async def test_an_evaluation_has_the_engines_that_are_not_lent() -> None:
    async with scene(2, 1) as s:
        await s.take()
        await s.devices.serve_evaluation()
        assert s.engines.asleep == {"engine 1"}


async def test_engines_come_and_leave_while_the_run_goes_on() -> None:
    async with scene(3, 2) as s:
        s.engines.names.remove("engine 2")
        s.engines.names.append("engine 3")
        waiting = s.wait()
        s.ready, s.at_engines = BATCH, 2 * SLOTS
        await until(lambda: s.engines.asleep)
        s.batch.set_result("batch")
        await waiting
        assert s.engines.asleep == {"engine 1"}, "one that joined is nobody's, and has room for others' requests"
        await s.devices.serve_all()
        assert s.engines.asleep == set()


async def test_if_the_others_are_given_up_the_lent_ones_go_on_alone() -> None:
    async with scene(2, 1) as s:
        await s.take()
        s.engines.failed = {"engine 0"}
        await s.devices.serve_evaluation()
        assert s.engines.asleep == set(), "else the evaluation would never end"
        await s.take()
        await s.update()
        assert s.engines.asleep == set(), "else the next batch would never be there"
        waiting = s.wait()
        s.ready = BATCH
        await asyncio.sleep(0.01)
        assert s.engines.asleep == set()
        s.batch.set_result("batch")
        await waiting
        assert s.engines.asleep == {"engine 1"}


async def test_if_the_others_are_given_up_while_the_trainer_waits_the_lent_ones_wake_up() -> None:
    async with scene(2, 1) as s:
        waiting, s.ready = s.wait(), BATCH
        await until(lambda: s.engines.asleep == {"engine 1"})
        s.engines.failed = {"engine 0"}
        await until(lambda: s.engines.asleep == set())
        s.batch.set_result("batch")
        await waiting
        assert s.engines.asleep == {"engine 1"}, "the trainer has its devices"


@pytest.mark.parametrize("at", ["the batch", "the engines", "both", "engines that wake up"])
async def test_a_wait_that_is_cancelled_leaves_no_task(at: str) -> None:
    async with scene(2, 1) as s:
        if at == "engines that wake up":
            await s.take()
            s.engines.gate.clear()
            await s.update(waited_s=100.0)
            await until(lambda: s.engines.did[-1] == "expands")
            s.states.clear()
        s.engines.gate.clear()
        before = asyncio.all_tasks()
        waiting = s.wait()
        if at == "both":
            s.ready = BATCH
            await until(lambda: s.engines.did)
        if at in ("the engines", "engines that wake up"):
            s.batch.set_result("batch")
            await until(lambda: s.states[-1:] == ["switch"])
        await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert s.broken_off == (at in ("the batch", "both"))
        assert asyncio.all_tasks() <= before, "at once"


async def test_engines_that_wake_up_when_the_run_ends_are_not_waited_for() -> None:
    async with scene(2, 1) as s:
        await s.take()
        s.engines.gate.clear()
        await s.update(waited_s=100.0)
        await s.devices.close()


async def test_an_error_of_a_batch_or_of_the_engines_is_raised_at_once() -> None:
    async with scene(2, 1) as s:
        waiting = s.wait()
        s.batch.set_exception(ConfigError("no rollouts"))
        with pytest.raises(ConfigError, match="no rollouts"):
            await waiting
    async with scene(2, 1) as s:
        s.engines.fault = EngineError("it does not fall asleep")
        waiting = s.wait()
        s.ready = BATCH
        with pytest.raises(EngineError, match="it does not fall asleep"):
            await waiting
        assert s.broken_off, "though the batch was not there"
