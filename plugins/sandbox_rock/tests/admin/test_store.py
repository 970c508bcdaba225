"""The database: rows outlive the process, many share a transaction, and a database that fails stops starts only. What
the tests ask of `database` holds for SQLite and for PostgreSQL."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from sqlalchemy import create_engine, inspect, select
from sqlalchemy.exc import DataError, OperationalError

from ale_rock.admin import store as store_module
from ale_rock.admin.record import Need, Record
from ale_rock.admin.store import Store
from ale_rock.admin.tables import SANDBOXES


def record(name: str, **given: object) -> Record:
    """A record of a sandbox that runs."""
    return Record(name, "f", Need(1, 2, 3, 4), labels={"a": "é"}, state="running", worker="w", **given)  # type: ignore[arg-type]


async def test_a_record_comes_back_as_it_was(database):
    store = Store(database)
    await store.start()
    written = record("a", user="anna", idle_s=3.0, history=[("", "pending", "start", 1.5)])
    await store.save(written)
    await store.close()
    again = Store(database)
    (read,), stopped = await again.start()
    assert read.row() == written.row()
    assert stopped == []
    found = await again.find("a")
    assert found is not None
    assert found.labels == {"a": "é"}
    assert await again.find("b") is None
    await again.close()


async def test_what_is_saved_while_a_write_is_under_way_shares_the_next(database, monkeypatch):
    sizes: list[int] = []
    write = store_module.write
    monkeypatch.setattr(store_module, "write", lambda rows, to: (sizes.append(len(rows)), write(rows, to)))
    store = Store(database)
    await store.start()
    first = store.save(record("first"))
    await store.save(record("0"))
    for number in range(500):
        last = store.save(record(str(number)))
    await last
    assert first.done()
    assert sum(sizes) in (502, 501)
    assert len(sizes) <= 3
    await store.close()


async def test_the_newest_state_of_a_record_is_written(database):
    store = Store(database)
    await store.start()
    changing = record("a")
    store.save(changing)
    changing.state = "stopped"
    await store.save(changing)
    await store.close()
    with create_engine(database).connect() as connection:
        assert connection.execute(select(SANDBOXES.c.state)).all() == [("stopped",)]
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"


async def test_the_migrations_make_the_tables_that_the_code_uses(database):
    for _ in range(2):  # the second start finds nothing to do
        store = Store(database)
        await store.start()
        await store.close()
    columns = {column["name"] for column in inspect(create_engine(database)).get_columns("sandboxes")}
    assert columns == set(SANDBOXES.columns.keys())


async def test_old_rows_are_forgotten_and_live_ones_are_not(database):
    store = Store(database)
    await store.start()
    ended = record("ended", stopped=10.0)
    ended.state = "stopped"
    store.save(ended)
    await store.save(record("runs", stopped=10.0))
    await store.forget(11.0)
    assert await store.find("ended") is None
    assert await store.find("runs") is not None
    await store.close()


async def test_a_database_that_fails_is_tried_again_and_nothing_is_lost(tmp_path, monkeypatch, until):
    monkeypatch.setattr(store_module, "RETRY_S", 0.01)
    write, failing = store_module.write, True

    def sometimes(rows: object, connection: object) -> None:
        if failing:
            raise OperationalError("insert", {}, Exception("no space"))
        write(rows, connection)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "write", sometimes)
    store = Store(f"sqlite:///{tmp_path}/rock.sqlite")
    await store.start()
    saved = store.save(record("a"))
    await until(lambda: store.error is not None)
    assert not saved.done()
    failing = False
    await saved
    assert store.error is None
    assert await store.find("a") is not None
    await store.close()


async def test_a_server_that_is_killed_is_written_to_again_when_it_is_back(postgres, until, monkeypatch):
    monkeypatch.setattr(store_module, "RETRY_S", 0.05)
    postgres.create("killed")
    store = Store(postgres.url("killed"))
    await store.start()
    await store.save(record("before"))
    postgres.kill()
    try:
        saved = store.save(record("meanwhile"))
        await until(lambda: store.error is not None)
    finally:
        await asyncio.to_thread(postgres.start)
    await saved
    assert store.error is None
    assert [await store.find(name) is not None for name in ("before", "meanwhile")] == [True, True]
    await store.close()


async def test_a_row_that_the_database_never_takes_does_not_hold_up_the_others(tmp_path, monkeypatch):
    write = store_module.write

    def refusing(rows: list[dict[str, object]], connection: object) -> None:
        if any(row["id"] == "refused" for row in rows):
            raise DataError("insert", {}, Exception("value too long"))
        write(rows, connection)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "write", refusing)
    store = Store(f"sqlite:///{tmp_path}/rock.sqlite")
    await store.start()
    store.save(record("first"))
    await asyncio.gather(*(store.save(record(name)) for name in ("a", "refused", "b")))
    assert [await store.find(name) is not None for name in ("a", "refused", "b")] == [True, False, True]
    await store.close()


async def test_a_database_that_is_silent_is_reported_in_time(serve, monkeypatch):
    async with serve() as admin:
        monkeypatch.setattr(store_module, "ANSWER_S", 0.05)
        silent = threading.Event()
        admin.service.fleet.store._thread.submit(silent.wait, 60)
        answer = await admin.get("/get_status", sandbox_id="unknown", include_all_states=True)
        assert (answer["result"]["code"], "database" in answer["message"]) == (5000, True)
        silent.set()
        monkeypatch.undo()
        assert (await admin.get("/get_status", sandbox_id="unknown", include_all_states=True))["result"]["code"] == 4000


async def test_a_server_of_a_database_that_never_answers_is_given_up(monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setattr(store_module, "CONNECT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        store = Store(f"postgresql+psycopg://rock@127.0.0.1:{server.getsockname()[1]}/rock")
        with pytest.raises(OperationalError, match="timeout"):
            await asyncio.wait_for(store.start(), 20)


@pytest.mark.parametrize("path", ["/nonexistent/folder/rock.sqlite"])
async def test_a_database_that_cannot_be_opened_is_an_error_at_the_start(path):
    store = Store(f"sqlite:///{path}")
    with pytest.raises(OperationalError):
        await store.start()
