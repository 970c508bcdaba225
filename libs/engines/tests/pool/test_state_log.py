"""A pool's events say which state each replica was in, and where, without a gap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from ale.session.tokenizer import byte_tokenizer
from ale_engines.pool.engines import Engines
from ale_engines.pool.member import Member, State
from ale_engines.pool.members import Members
from ale_engines.pool.state_log import StateLog, read_states
from ale_testing.recording_channel import RecordingChannel

from .conftest import FakeReplica, policy, until

Spans = dict[tuple[str, str], list[tuple[str, float, float]]]


class Placed(FakeReplica):
    """A replica that can be put elsewhere."""

    place = "here"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def member() -> Member:
    return Member.of(Placed("a"))


@pytest.fixture
def members() -> Members:
    return Members([], print)


@pytest.fixture
def log(members: Members, member: Member) -> StateLog:
    log = StateLog(lambda: read_states(members), Clock())
    members.listeners.append(log.look)
    members.add(member)
    return log


def taken(log: StateLog) -> Spans:
    return {(one["name"], one["place"]): one["spans"] for one in log.take()}


def test_each_change_ends_a_state_and_the_next_event_goes_on_where_the_last_one_ended(
    log: StateLog, member: Member
) -> None:
    assert taken(log) == {}, "it has no model yet"
    member.change(State.SERVING)
    member.change(State.LOADING)
    first = taken(log)
    assert [state for state, _, _ in first["a", "here"]] == ["serving", "loading"]
    assert all(before[2] == after[1] for before, after in pairwise(first["a", "here"]))
    member.change(State.SERVING)
    second = taken(log)
    assert [state for state, _, _ in second["a", "here"]] == ["loading", "serving"]
    assert second["a", "here"][0][1] == first["a", "here"][-1][2]


def test_a_replica_that_is_started_again_elsewhere_is_listed_for_both_places(log: StateLog, member: Member) -> None:
    member.change(State.SERVING)
    member.change(State.LOST)
    member.replica.place = "there"  # type: ignore[misc]
    member.change(State.SERVING)
    found = taken(log)
    assert {key: [state for state, _, _ in spans] for key, spans in found.items()} == {
        ("a", "here"): ["serving", "lost"],
        ("a", "there"): ["serving"],
    }
    assert set(taken(log)) == {("a", "there")}


def test_they_are_listed_in_the_order_of_the_pool_whichever_changed_first(
    log: StateLog, members: Members, member: Member
) -> None:
    other = Member.of(Placed("b"))
    members.add(other)
    for each in (member, other):
        each.change(State.SERVING)
    other.change(State.LOADING)
    assert [one["name"] for one in log.take()] == ["a", "b"]


def test_a_replica_that_has_left_is_listed_once_more(log: StateLog, members: Members, member: Member) -> None:
    member.change(State.SERVING)
    members.remove(member)
    assert [state for state, _, _ in taken(log)["a", "here"]] == ["serving"]
    assert taken(log) == {}


def states_in(channel: RecordingChannel) -> Iterator[dict[str, list[str]]]:
    for kind, data in channel.events:
        assert kind == "engine_states"
        engines: list[dict[str, Any]] = data["engines"]
        yield {one["name"]: [state for state, _, _ in one["spans"]] for one in engines}


async def test_a_pool_reports_the_states_after_each_update_and_when_it_is_closed() -> None:
    channel, first, second = RecordingChannel(), Placed("a"), FakeReplica("b")
    async with Engines([first, second], print, channel.event) as pool:
        await pool.load_model(None, byte_tokenizer())
        await pool.load_weights(policy(1))
        await pool.shrink(["a"])
        await pool.load_weights(policy(2))
        second.kill()
        await until(lambda: pool.replica_statuses()[1].state is State.LOST or second.starts == 2)
        await until(lambda: pool.replica_statuses()[1].state is State.SERVING)
    await pool.close()
    one, two, three = states_in(channel)
    assert one == {"a": ["serving", "loading", "serving"], "b": ["serving", "loading", "serving"]}
    assert two["a"] == ["serving", "leaving", "asleep"]
    assert two["b"][-2:] == ["loading", "serving"]
    assert three["a"] == ["asleep"]
    assert three["b"] == ["serving", "lost", "serving"]
    assert [engine["place"] for engine in channel.events[0][1]["engines"]] == ["here", ""]


async def test_a_pool_that_never_had_a_model_reports_nothing() -> None:
    channel = RecordingChannel()
    async with Engines([FakeReplica("a")], print, channel.event):
        pass
    assert channel.events == []
