"""A database on PostgreSQL is of one service at a time, also after `kill -9` and after a connection that was cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import service_process
from postgres_server import PostgresServer
from service_process import Command

from ale_rock.admin import database_lock
from ale_rock.admin import store as store_module
from ale_rock.admin.database_lock import DatabaseTaken
from ale_rock.admin.record import Need, Record
from ale_rock.admin.store import Store

IMPATIENT = "from ale_rock.admin import database_lock, store; database_lock.WAIT_S = 0.5; store.CHECK_S = 0.1; "
WAIT_IN_LINE = database_lock.TAKE.replace("pg_try_advisory_lock", "pg_advisory_lock")
"""A connection that waits for the lock gets it from the server as soon as its holder has ended, before any other."""


class Database:
    """An empty database, seen by its operator."""

    def __init__(self, server: PostgresServer) -> None:
        name = uuid4().hex
        server.create(name)
        self.url, self._address = server.url(name), server.address(name)

    def connect(self) -> psycopg.Connection:
        """Connect to it without the lock."""
        return psycopg.connect(self._address, autocommit=True)

    def holder(self) -> int | None:
        """Return the server's process of the connection that holds the lock."""
        with self.connect() as operator:
            found = operator.execute(database_lock.HOLDER).fetchone()
            return found[0] if found else None

    def cut(self) -> int:
        """End the connection that holds the lock; returns its process."""
        pid = self.holder()
        assert pid is not None
        with self.connect() as operator:
            operator.execute("SELECT pg_terminate_backend(%s)", [pid])
        return pid


@pytest.fixture
def shared(postgres: PostgresServer) -> Database:
    """A database that two services are given."""
    return Database(postgres)


@asynccontextmanager
async def started(url: str) -> AsyncIterator[Store]:
    """A service's hold on its database."""
    store = Store(url)
    try:
        await store.start()
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def taken_in_a_cut(shared: Database, until: Any) -> AsyncIterator[None]:
    """Another service takes the database as soon as the first one's connection is cut."""
    with shared.connect() as other:
        waiting = asyncio.create_task(asyncio.to_thread(other.execute, WAIT_IN_LINE))
        with shared.connect() as operator:
            await until(lambda: operator.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone())
        shared.cut()
        await waiting
        yield


def serve(folder: Path, name: str, database: Database) -> Command:
    """Start a service in a process of its own."""
    return Command(folder, name, ["serve", "--port", "0", "--worker", "none", "--database", database.url])


def test_a_second_service_ends_with_a_sentence_and_the_first_goes_on(
    shared: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serve(tmp_path, "first", shared)
    try:
        first.wait_for("ROCK service: ")
        monkeypatch.setattr(service_process, "ALE", IMPATIENT + service_process.ALE)
        second = serve(tmp_path, "second", shared)
        assert second.process.wait(service_process.START_S) == 2
        said = second.log.read_text()
        assert f"The database {shared.url} cannot be used: another service, connected from 127.0.0.1, uses it" in said
        assert "; end that one, or name another database by --database." in said
        assert f"end its connection: SELECT pg_terminate_backend({shared.holder()})." in said
        assert "Traceback" not in said
        assert first.process.poll() is None
    finally:
        first.stop()


def test_a_service_that_was_killed_is_started_again_at_once(shared: Database, tmp_path: Path) -> None:
    for _ in range(2):
        service = serve(tmp_path, uuid4().hex, shared)
        try:
            service.wait_for("ROCK service: ")
        finally:
            service.kill()


async def test_a_start_waits_until_the_server_has_noticed_that_the_last_service_ended(shared, caplog, until):
    with shared.connect() as last:
        last.execute(database_lock.TAKE)
        store = Store(shared.url)
        starting = asyncio.create_task(store.start())
        await until(lambda: "A service holds the database still" in caplog.text)
        assert not starting.done()
    await starting
    await store.close()


async def test_a_connection_that_was_cut_is_made_again_with_the_lock_while_nothing_is_written(
    shared, monkeypatch, until
):
    monkeypatch.setattr(store_module, "CHECK_S", 0.05)
    monkeypatch.setattr(store_module, "RETRY_S", 0.05)
    async with started(shared.url) as store:
        cut = shared.cut()
        await until(lambda: shared.holder() not in (None, cut))
        monkeypatch.setattr(database_lock, "WAIT_S", 0.1)
        with pytest.raises(DatabaseTaken):
            async with started(shared.url):
                pass
        await store.save(Record("a", "f", Need(1, 2, 3, 4)))
        assert store.taken is None


async def test_a_service_whose_database_was_taken_in_a_cut_writes_no_more(shared, monkeypatch, until):
    monkeypatch.setattr(store_module, "CHECK_S", 0.05)
    monkeypatch.setattr(database_lock, "WAIT_S", 0.1)
    async with started(shared.url) as store:
        ended = asyncio.Event()
        store.on_taken = ended.set
        async with taken_in_a_cut(shared, until):
            await ended.wait()
        await until(lambda: shared.holder() is None)
        unsaved = store.save(Record("a", "f", Need(1, 2, 3, 4)))
        with pytest.raises(DatabaseTaken):  # the other one has ended, and may have written
            await store.find("a")
        assert (store.error, unsaved.done()) == ("Another service uses the database.", False)


async def test_a_service_whose_database_was_taken_in_a_cut_ends_with_a_sentence(shared, tmp_path, monkeypatch, until):
    monkeypatch.setattr(service_process, "ALE", IMPATIENT + service_process.ALE)
    service = serve(tmp_path, "service", shared)
    try:
        await asyncio.to_thread(service.wait_for, "ROCK service: ")
        async with taken_in_a_cut(shared, until):
            assert await asyncio.to_thread(service.process.wait, service_process.START_S) == 2
    finally:
        service.stop()
    said = service.log.read_text()
    assert "cannot be used: another service, connected from 127.0.0.1, uses it; end that one" in said
    assert "Traceback" not in said


async def test_services_with_schemas_of_their_own_share_a_database(shared):
    with shared.connect() as operator:
        operator.execute("CREATE SCHEMA other")
    async with started(shared.url), started(f"{shared.url}?options=-csearch_path%3Dother"):
        pass


async def test_the_server_notices_a_machine_that_has_vanished_before_a_start_gives_up(shared):
    asked = "SELECT current_setting('tcp_keepalives_idle')::int, current_setting('tcp_keepalives_interval')::int"
    asked += ", current_setting('tcp_keepalives_count')::int, current_setting('tcp_user_timeout')::int"
    async with started(shared.url) as store:
        idle_s, interval_s, count, limit_ms = (await store.run(lambda rows: rows.exec_driver_sql(asked).all()))[0]
        assert (idle_s + interval_s * count, limit_ms / 1000) == (database_lock.NOTICED_S,) * 2
    assert database_lock.NOTICED_S < database_lock.WAIT_S
    async with started(f"{shared.url}?options=-ctcp_keepalives_idle%3D77") as store:
        assert (await store.run(lambda rows: rows.exec_driver_sql(asked).all()))[0][0] == 77
