"""An actor's messages come in their order and as they were sent; one that goes wrong takes no other with it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from ale_ray import actor_lifecycle as actors
from ale_ray import actor_messages as outbox
from ale_ray.actor_calls import ActorLost
from ale_ray.actor_lifecycle import take_messages
from ale_ray.actor_messages import (
    ActorClosed,
    Event,
    HookCall,
    LogLine,
    Outbox,
    RemoteChannel,
    RemoteHooks,
    RemoteLog,
    Sampling,
)

from .conftest import FakeActor


class Sender:
    """The part of an actor that has an outbox."""

    def __init__(self) -> None:
        self.outbox = Outbox()

    async def messages(self) -> list[Any]:
        return await self.outbox.take()


class Warnings(list[str]):
    """What was logged."""

    def __call__(self, text: str, *args: object) -> None:
        self.append(text % args)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Warnings:
    found = Warnings()
    monkeypatch.setattr(outbox.log, "warning", found)
    monkeypatch.setattr(actors.log, "warning", found)
    return found


async def test_messages_come_in_their_order_as_they_were_when_they_were_sent() -> None:
    sender, values = Sender(), [1]
    found: list[Any] = []
    channel, hooks = RemoteChannel(sender.outbox, str), RemoteHooks(sender.outbox, ["ale_model_called"])
    channel.event("first", values=values)
    values.append(2)
    sender.outbox.put(Sampling("a", True))
    hooks.call("ale_model_called", session_id="s")
    hooks.call("ale_sandbox_started", sandbox_id="nobody has this hook")
    sender.outbox.put(ActorClosed())
    await asyncio.wait_for(take_messages("worker 0", FakeActor(sender), found.append), 5)
    assert found == [
        Event("first", {"values": [1]}),
        Sampling("a", True),
        HookCall("ale_model_called", {"session_id": "s"}),
    ]


async def test_what_cannot_be_pickled_or_delivered_is_logged_and_the_rest_arrives(warnings: Warnings) -> None:
    sender, found = Sender(), list[Any]()

    def receive(message: Any) -> None:
        if message == Event("refused", {}):
            raise ValueError("no such event")
        found.append(message)

    channel = RemoteChannel(sender.outbox, str)
    channel.notify("hook", lock=threading.Lock())
    channel.event("refused")
    channel.event("kept")
    sender.outbox.put(ActorClosed())
    await asyncio.wait_for(take_messages("worker 0", FakeActor(sender), receive), 5)
    assert found == [Event("kept", {})]
    assert [text.partition(": ")[0] for text in warnings] == [
        "a message to the run cannot be sent",
        "a message of worker 0 is lost",
    ]


async def test_who_waits_for_messages_hears_that_the_actor_has_died() -> None:
    actor = FakeActor(Sender())
    listening = asyncio.create_task(take_messages("worker 0", actor, print))
    await asyncio.sleep(0)
    actor.kill()
    with pytest.raises(ActorLost, match="worker 0 has died"):
        await listening


async def test_a_line_of_the_log_goes_out_from_any_thread() -> None:
    sender = Sender()
    handler = RemoteLog(sender.outbox)
    record = logging.LogRecord("ale.test", logging.WARNING, "here", 1, "%s of %d", ("two", 3), None)
    await asyncio.to_thread(handler.emit, record)
    assert await sender.outbox.take() == [LogLine("ale.test", logging.WARNING, "two of 3")]
