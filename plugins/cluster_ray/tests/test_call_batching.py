"""Calls and messages are few exchanges, each call has its own answer, and none waits for an actor that has died."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import suppress
from pickle import UnpicklingError
from typing import Any

import pytest

from ale.errors import EngineError, PluginError
from ale_ray import actor_messages as actor_messages
from ale_ray import call_batching as call_batching
from ale_ray.actor_calls import ActorLost, Failed
from ale_ray.actor_messages import ActorClosed, Event, Outbox
from ale_ray.call_batching import CallBatcher, CallReceiver, MethodResult

from .conftest import FakeActor


class Doubler:
    """An actor that counts the exchanges that bring it calls; it begins one of number `late` after the next one."""

    def __init__(self) -> None:
        self.outbox, self.deliveries = Outbox(), 0
        self._callee = CallReceiver(self, self.outbox)
        self.late = -1
        self._next_came = asyncio.Event()

    async def exchange(self, pickled: bytes) -> list[Any]:
        number, calls = pickle.loads(pickled)
        self.deliveries += bool(calls)
        if number == self.late:
            await self._next_came.wait()
        elif number > self.late:
            self._next_came.set()
        return await self._callee.exchange(pickled)

    async def double(self, number: int, wait_s: float = 0.0) -> int:
        await asyncio.sleep(wait_s)
        return 2 * number

    async def fail(self) -> None:
        raise EngineError("no engine is left")

    async def hang(self) -> None:
        await asyncio.Event().wait()


class Unreadable:
    """It can be pickled, but not read again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Side:
    """Both ends of a line."""

    def __init__(self) -> None:
        self.made = Doubler()
        self.actor = FakeActor(self.made)
        self.line = CallBatcher("the doubler", self.actor)
        self.received: list[Any] = []
        self.listening = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        with suppress(ActorLost):
            await self.line.listen(self.received.append)


@pytest.fixture
async def side() -> AsyncIterator[Side]:
    found = Side()
    yield found
    found.made.outbox.put(ActorClosed())
    await found.listening


async def test_calls_that_are_made_together_are_one_delivery_and_answers_overtake_each_other(side: Side) -> None:
    over: list[int] = []

    async def call(number: int) -> None:
        assert await side.line.ask("double", number, 0.05 * (3 - number)) == 2 * number
        over.append(number)

    await asyncio.gather(*(call(number) for number in range(4)))
    assert over == [3, 2, 1, 0]
    assert side.made.deliveries == 1


async def test_calls_that_wait_for_their_turn_go_together(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_batching, "SEND_S", 3600.0)
    await side.line.ask("double", 1)
    while side.line._begun < 2:  # the next exchange is under way  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    waiting = []
    for number in range(3):
        waiting.append(side.line.ask("double", number))
        await asyncio.sleep(0.01)
    assert side.line._timer is not None
    assert side.line._timer.when() == side.line._next, "they go when it is their turn"
    side.line._exchange_at(0.0)  # it is
    assert await asyncio.gather(*waiting) == [0, 2, 4]
    assert side.made.deliveries == 2


async def test_an_error_is_that_of_its_own_call(side: Side) -> None:
    good = side.line.ask("double", 4)
    with pytest.raises(EngineError, match="no engine is left"):
        await side.line.ask("fail")
    with pytest.raises(PluginError, match="invalid literal"):
        await side.line.ask("double", Unreadable())
    assert await good == 8


async def test_an_error_that_cannot_be_read_ends_its_call_too(side: Side) -> None:
    broken = side.line.ask("hang")
    await side.line.ask("double", 1)
    side.made.outbox.put(MethodResult(0, Failed(b"no pickle")))
    with pytest.raises(UnpicklingError):
        await broken


async def test_an_actor_that_dies_leaves_no_call_waiting(side: Side) -> None:
    hanging = side.line.ask("hang")
    await side.line.ask("double", 1)
    side.actor.kill()
    with pytest.raises(ActorLost):
        await hanging
    with pytest.raises(ActorLost):
        await side.line.ask("double", 1)


async def test_a_call_that_is_cancelled_is_forgotten_and_its_answer_is_nobodys(side: Side) -> None:
    hanging = side.line.ask("hang")
    await side.line.ask("double", 1)
    hanging.cancel()
    side.made.outbox.put(MethodResult(0, None))
    assert await side.line.ask("double", 2) == 4


async def test_a_line_whose_actor_has_closed_leaves_no_call_waiting(side: Side) -> None:
    hanging = side.line.ask("hang")
    await side.line.ask("double", 1)
    side.made.outbox.put(ActorClosed())
    with pytest.raises(ActorLost, match="the doubler was closed"):
        await hanging
    with pytest.raises(ActorLost, match="the doubler was closed"):
        await side.line.ask("double", 1)


async def test_messages_keep_their_order_though_exchanges_begin_in_another_one(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_batching, "SEND_S", 0.0)
    monkeypatch.setattr(actor_messages, "GATHER_S", 0.001)
    side.made.late, asked = 1, []
    for number in range(6):
        side.made.outbox.put(Event("message", {"number": number}))
        asked.append(side.line.ask("double", number))
        await asyncio.sleep(0.01)
    assert await asyncio.gather(*asked) == [0, 2, 4, 6, 8, 10]
    assert [event.data["number"] for event in side.received] == [*range(6)]
