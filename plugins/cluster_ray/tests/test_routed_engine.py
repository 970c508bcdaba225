"""A rollout worker sends generations to the engines of the newest table, and goes on elsewhere when one breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation, Sampling
from ale_engines.pool.member import State
from ale_engines.pool.replica import Interrupted
from ale_ray import engine_calls, routed_engine
from ale_ray.engine_calls import EngineCalls
from ale_ray.routed_engine import EngineTable, RoutedEngine, TableRow

from .conftest import until

REQUEST = GenerateRequest((1, 2), Sampling(max_tokens=4, stop_token_ids=(9,)), session="s")


def row(name: str, state: State = State.SERVING, version: int = 0, actor: Any = None) -> TableRow:
    return TableRow(name, actor or name, 2, state, version, 32)


def table(number: int, rows: list[TableRow], version: int = 0, refusal: str = "") -> EngineTable:
    return EngineTable(number, tuple(rows), version, refusal)


class Reports:
    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def __call__(self, engine: str, works: bool) -> None:
        self.seen.append((engine, works))


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def engine(reports: Reports) -> RoutedEngine:
    return RoutedEngine(reports)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Callable[[GenerateRequest], Generation]]:
    """What each actor answers."""
    found: dict[Any, Callable[[GenerateRequest], Generation]] = {}

    class Calls(EngineCalls):
        async def generate(self, request: GenerateRequest) -> Generation:
            await asyncio.sleep(0)
            return found[self.actor](request)

    monkeypatch.setattr(routed_engine, "EngineCalls", Calls)
    return found


def whole(version: int) -> Callable[[GenerateRequest], Generation]:
    return lambda request: Generation((5, 9), (-0.5, -0.5), (version, version), "stop")


def broken(version: int) -> Callable[[GenerateRequest], Generation]:
    def answer(request: GenerateRequest) -> Generation:
        raise Interrupted("it has died", Generation((7,), (-0.1,), (version,), "length"))

    return answer


async def test_a_generation_that_an_engine_breaks_off_goes_on_at_another_one(
    engine: RoutedEngine, reports: Reports, answers: Any
) -> None:
    engine.update(table(0, [row("a"), row("b", State.LOST)]))
    answers["a"], answers["b"] = broken(3), whole(4)
    asked = asyncio.create_task(engine.generate(REQUEST))
    await until(lambda: reports.seen)
    assert not asked.done(), "nobody serves"
    engine.update(table(1, [row("a", State.LOST), row("b", version=4)]))
    assert await asked == Generation((7, 5, 9), (-0.1, -0.5, -0.5), (3, 4, 4), "stop")
    assert reports.seen == [("a", False), ("b", True)]


async def test_an_older_table_that_comes_late_changes_nothing(engine: RoutedEngine) -> None:
    engine.update(table(2, [row("a", version=5)], version=5))
    engine.update(table(1, [row("a", State.LOST, version=4)], version=4))
    assert engine.version == 5


async def test_the_version_is_that_of_the_pool_also_while_no_engine_serves(engine: RoutedEngine) -> None:
    """One that is started again has none of the weights yet."""
    engine.update(table(0, [row("a", State.LOST, version=0)], version=5))
    assert engine.version == 5


async def test_where_no_engine_will_serve_the_runs_reason_is_raised(engine: RoutedEngine) -> None:
    engine.update(table(0, [row("a", State.LOST)]))
    asked = asyncio.create_task(engine.generate(REQUEST))
    await asyncio.sleep(0)
    engine.update(table(1, [row("a", State.FAILED)], refusal="No replica of the engine is left."))
    with pytest.raises(EngineError, match="No replica of the engine is left"):
        await asked


async def test_an_engine_that_works_is_reported_once_and_again_after_a_restart(
    engine: RoutedEngine, reports: Reports, answers: Any
) -> None:
    engine.update(table(0, [row("a", actor="first")]))
    answers["first"] = answers["second"] = whole(0)
    for _ in range(3):
        await engine.generate(REQUEST)
    engine.update(table(1, [row("a", actor="second")]))
    await engine.generate(REQUEST)
    assert reports.seen == [("a", True)] * 2


async def test_an_engine_that_has_left_gets_nothing_more(engine: RoutedEngine, answers: Any) -> None:
    engine.update(table(0, [row("a"), row("b")]))
    engine.update(table(1, [row("b")]))
    answers["b"] = whole(0)
    assert [len((await engine.generate(REQUEST)).token_ids) for _ in range(4)] == [2] * 4


async def test_what_an_engine_has_sampled_can_be_read_while_it_samples(
    engine: RoutedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that replies can be streamed; the actor is asked more often while somebody reads."""
    ends, asked = asyncio.Event(), list[int]()

    class Remote:
        def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
            self.remote = answer

    class Actor:
        async def _generate(self, call: str, request: GenerateRequest) -> Generation:
            await ends.wait()
            return Generation((1, 2, 3), (-0.1,) * 3, (0,) * 3, "stop")

        async def _sampled(self, known: dict[str, int]) -> dict[str, Generation]:
            asked.extend(known.values())
            made = min(2, len(asked))
            return {
                call: Generation((1, 2)[count:made], (-0.1,) * (made - count), (0,) * (made - count), "length")
                for call, count in known.items()
            }

        @property
        def generate(self) -> Remote:
            return Remote(self._generate)

        @property
        def sampled(self) -> Remote:
            return Remote(self._sampled)

    async def ask(name: str, answer: Awaitable[Any]) -> Any:
        return await answer

    monkeypatch.setattr(engine_calls, "ask", ask)
    monkeypatch.setattr(engine_calls, "STREAM_S", 0.001)
    engine.update(table(0, [row("a", actor=Actor())]))
    running = asyncio.create_task(engine.generate(REQUEST))
    await until(lambda: engine.sampled_so_far(REQUEST).token_ids == (1, 2))
    assert engine.sampled_so_far(REQUEST, after=1).token_ids == (2,)
    ends.set()
    assert (await running).token_ids == (1, 2, 3)
    assert engine.sampled_so_far(REQUEST).token_ids == ()
