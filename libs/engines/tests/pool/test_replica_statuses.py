"""Who dispatches to the replicas of a pool from another process gets a table of them, and reports what it sees."""

from __future__ import annotations

import asyncio

import pytest

from ale_engines.pool import member
from ale_engines.pool.member import INTERRUPTED_ROUNDS, ReplicaStatus, State

from .conftest import FakeReplica, ask, policy, pool_of, until

Table = dict[str, tuple[State, int]]


async def test_listeners_are_called_after_every_change_and_find_it_in_the_table() -> None:
    first, second = FakeReplica("a"), FakeReplica("b")
    tables: list[Table] = []
    async with pool_of(first, second) as pool:
        pool.listeners.append(
            lambda: tables.append({status.name: (status.state, status.version) for status in pool.replica_statuses()})
        )
        await pool.load_weights(policy(1))
        assert (State.LOADING, 0) in [table["b"] for table in tables]
        assert tables[-1] == {"a": (State.SERVING, 1), "b": (State.SERVING, 1)}
        await pool.shrink(["a"])
        assert (State.LEAVING, 1) in [table["a"] for table in tables]
        assert tables[-1]["a"] == (State.ASLEEP, 1)
        assert pool.replica_statuses()[0] == ReplicaStatus("a", 2, State.ASLEEP, 1, 1000)
        await pool.load_weights(policy(2))
        await pool.expand(["a"])
        assert tables[-1] == {"a": (State.SERVING, 2), "b": (State.SERVING, 2)}
        await pool.join(FakeReplica("c"))
        assert tables[-1]["c"] == (State.SERVING, 2)
        await pool.leave("c")
        assert "c" not in tables[-1]
        tables.clear()
        second.kill()
        await until(lambda: len(tables) > 1 and tables[-1]["b"] == (State.SERVING, 2))
        states = [state for table in tables for name, (state, _) in table.items() if name == "b"]
        assert states[0] is State.LOST


async def test_requests_and_checks_that_find_nothing_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "CHECK_S", 0.001)
    replica, calls = FakeReplica("a"), 0

    def count() -> None:
        nonlocal calls
        calls += 1

    async with pool_of(replica) as pool:
        pool.listeners.append(count)
        for i in range(20):
            await pool.generate(ask(f"s{i}"))
        await asyncio.sleep(0.02)
        assert calls == 0


async def test_a_replica_that_broke_off_a_generation_of_others_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "CHECK_S", 60.0)
    first, second = FakeReplica("a"), FakeReplica("b")
    async with pool_of(first, second) as pool:
        first.kill()
        pool.suspect("a")
        assert pool.replica_statuses()[0].state is State.SUSPECT
        await until(lambda: first.starts == 2 and pool.metrics()["replicas_serving"] == 2)
        pool.suspect("somebody who has left")
        await pool.shrink(["b"])
        pool.suspect("b")
        assert pool.replica_statuses()[1].state is State.ASLEEP
        assert (second.starts, pool.metrics()["interruptions"]) == (1, 3)


async def test_a_replica_that_finishes_generations_of_others_is_not_given_up() -> None:
    replica = FakeReplica("a")
    rounds = INTERRUPTED_ROUNDS * replica.slots
    async with pool_of(replica) as pool:
        for _ in range(2 * rounds):
            pool.suspect("a")
            pool.finished("a")
        await until(lambda: pool.replica_statuses()[0].state is State.SERVING)
        assert replica.starts == 1
        for _ in range(rounds):
            pool.suspect("a")
        await until(lambda: replica.starts == 2 and pool.replica_statuses()[0].state is State.SERVING)
