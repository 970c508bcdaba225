"""The database. The admin works in memory, and the database is behind it by at most one write.

1. The admin reads the database when it starts, and for sandboxes that ended long ago.
2. `save` marks a record. One thread writes all marked records in one transaction, while others are marked for the next
   one. Under load a transaction has hundreds of rows; a single record is written at once.
3. A caller that needs a row to be durable (a start, before its worker is asked) awaits `save`.
4. A connection that was cut is soon opened again, also while nothing is written, because the service's lock on the
   database ended with it (`database_lock`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import ColumnElement, Connection, Engine, create_engine, delete, event, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.exc import TimeoutError as DatabaseTimeout
from sqlalchemy.pool import StaticPool

from ale_rock.admin.database_lock import DatabaseTaken, lock_connections
from ale_rock.admin.log_store import forget_logs, read_log, write_logs
from ale_rock.admin.record import Record, from_row
from ale_rock.admin.tables import COMMITS, SANDBOXES, SERVICE

T = TypeVar("T")
log = logging.getLogger(__name__)
RETRY_S = 1.0
GATHER_S = 0.01
"""Least time between two transactions: during each, requests get less of the interpreter."""
CONNECT_S = 5
CHECK_S = 5.0
"""Seconds between two checks whether the database answers, while nothing is written."""
ANSWER_S = 15.0
"""Seconds after which a database counts as not answering, and its callers get an error."""


class Store:
    """Sandboxes in a database."""

    def __init__(self, url: str) -> None:
        self._engine = connect(url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rock-store")
        self._marked: dict[str, Record] = {}
        self._logs: dict[str, str] = {}
        self._next: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.service_id = ""
        """A part of the names of this service's snapshots; known once it has started."""
        self.error: str | None = None
        """Why the last write failed; None once a write succeeds."""
        self.taken: DatabaseTaken | None = None
        """Set once another service uses the database. This service then writes no more and must end."""
        self.on_taken: Callable[[], None] = lambda: None

    async def start(self) -> tuple[list[Record], list[Record]]:
        """Migrate the tables; returns the sandboxes that lived, and the stopped ones that will be archived or
        deleted."""
        await self._run(migrate, None)
        self.service_id = await self.run(lambda connection: connection.execute(select(SERVICE.c.id)).scalar_one())
        self._task = asyncio.create_task(self._write_all())
        state, delete_s = SANDBOXES.c.state, SANDBOXES.c.delete_s
        wanted = select(SANDBOXES).where(
            or_(
                state.in_(("pending", "running", "archiving")),
                (state == "stopped") & or_(delete_s.is_not(None), SANDBOXES.c.archive_s.is_not(None)),
            )
        )
        found = await self.run(
            lambda connection: [from_row(dict(row)) for row in connection.execute(wanted).mappings()]
        )
        for record in found:
            if record.state == "archiving":  # the admin ended meanwhile; the files are where they were
                record.state = "stopped"
        return [each for each in found if each.live], [each for each in found if not each.live]

    async def close(self) -> None:
        """Write the marked records and end."""
        if self._task is not None:
            while (self._marked or self._logs) and self.error is None:
                await asyncio.gather(self._soon(), return_exceptions=True)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._next is not None:
            self._next.cancel()
        self._thread.shutdown()
        self._engine.dispose()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run a function in a transaction, in the thread of the database. Raises `SQLAlchemyError`, also if it takes
        too long; the thread is then busy until the limits of `connect` end it."""
        return await self._run(work, ANSWER_S)

    async def _run(self, work: Callable[[Connection], T], limit_s: float | None) -> T:
        def inside() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._thread, inside)
        except TimeoutError:
            raise DatabaseTimeout(f"The database did not answer in {limit_s:g} s.") from None

    def save(self, record: Record) -> asyncio.Future[None]:
        """Write a record soon; the result is done when that is durable."""
        self._marked[record.id] = record
        return self._soon()

    def save_log(self, sandbox_id: str, text: str) -> None:
        """Write the log of a sandbox that has ended, soon."""
        self._logs[sandbox_id] = text
        self._soon()

    async def log(self, sandbox_id: str) -> str:
        """Return the log of a sandbox that has ended; the empty text if there is none."""
        waiting = self._logs.get(sandbox_id)
        return waiting if waiting is not None else await self.run(partial(read_log, sandbox_id))

    def _soon(self) -> asyncio.Future[None]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._wake.set()
        return self._next

    async def find(self, sandbox_id: str) -> Record | None:
        """Read a sandbox that is no longer in memory."""
        wanted = select(SANDBOXES).where(SANDBOXES.c.id == sandbox_id)
        rows = await self.run(lambda connection: connection.execute(wanted).mappings().all())
        return from_row(dict(rows[0])) if rows else None

    async def deleted_with_files(self) -> list[Record]:
        """Return the deleted sandboxes whose files could not be removed yet."""
        return await self._select(SANDBOXES.c.state == "deleted")

    async def stopped_with_files(self, before: float) -> list[Record]:
        """Return the sandboxes that were stopped before a time and whose files are kept."""
        return await self._select((SANDBOXES.c.state == "stopped") & (SANDBOXES.c.stopped < before))

    async def archived(self) -> list[Record]:
        """Return the archived sandboxes."""
        return await self._select(SANDBOXES.c.state == "archived")

    async def used_snapshots(self, names: Collection[str]) -> set[str]:
        """Return which of these snapshots are the files of a sandbox that is not deleted, or an image."""
        kept = select(SANDBOXES.c.snapshot).where(SANDBOXES.c.snapshot.in_(names) & (SANDBOXES.c.state != "deleted"))
        images = select(COMMITS.c.snapshot).where(COMMITS.c.snapshot.in_(names))
        return set(await self.run(lambda connection: [*connection.scalars(kept), *connection.scalars(images)]))

    async def _select(self, where: ColumnElement[bool]) -> list[Record]:
        wanted = select(SANDBOXES).where(where & SANDBOXES.c.snapshot.is_not(None))
        rows = await self.run(lambda connection: connection.execute(wanted).mappings().all())
        return [from_row(dict(row)) for row in rows]

    async def forget(self, before: float) -> None:
        """Delete the rows of sandboxes that ended before a time and left no files; and of those deleted before it whose
        files are on a worker that has not been there since: should it come back, they belong to nothing."""
        ended = SANDBOXES.c.state.in_(("stopped", "deleted")) & SANDBOXES.c.snapshot.is_(None)
        deleted = (SANDBOXES.c.state == "deleted") & (SANDBOXES.c.deleted < before)
        old = ((SANDBOXES.c.stopped < before) & ended) | deleted
        await self.run(lambda connection: connection.execute(delete(SANDBOXES).where(old)))
        await self.run(partial(forget_logs, before))

    async def _write_all(self) -> None:
        time, written = asyncio.get_running_loop().time, 0.0
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), CHECK_S)
            await asyncio.sleep(max(0.0, written + GATHER_S - time()))
            self._wake.clear()
            marked, self._marked = self._marked, {}
            logs, self._logs = self._logs, {}
            done, self._next = self._next, None
            rows = [record.row() for record in marked.values()]
            while True:
                try:
                    await self._write(rows, logs)
                    break
                except DatabaseTaken as error:
                    self.error, self.taken = "Another service uses the database.", error
                    self.on_taken()
                    return
                except Exception as error:
                    # Nothing is started and nothing forgotten until the database is back.
                    self.error = f"The database does not answer ({type(error).__name__})."
                    log.error("database write failed, retrying: %s", type(error).__name__)
                    await asyncio.sleep(RETRY_S)
            self.error, written = None, time()
            if done is not None and not done.done():
                done.set_result(None)

    async def _write(self, rows: Sequence[dict[str, Any]], logs: Mapping[str, str]) -> None:
        """Write rows and logs in one transaction. A row that the database refuses is dropped, and the others are
        written."""
        try:
            await self.run(partial(write_all, rows, logs))
        except (DataError, IntegrityError) as error:
            if len(rows) + len(logs) == 1:
                named = rows[0]["id"] if rows else next(iter(logs))
                log.error("what is to be kept of the sandbox %s is refused: %s", named, type(error).__name__)
                return
            for row in rows:
                await self._write([row], {})
            for sandbox_id, text in logs.items():
                await self._write([], {sandbox_id: text})


def connect(url: str) -> Engine:
    """Return the engine of a URL; SQLite gets a journal that survives the end of this process at any moment."""
    if not url.startswith("sqlite"):
        return connect_to_server(make_url(url))
    # There is one thread, and so one connection.
    engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 30})

    @event.listens_for(engine, "connect")
    def _use_wal(connection: Any, _: object) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=30000"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def connect_to_server(url: URL) -> Engine:
    """Return the engine of a server. Connecting, the network and statements have time limits, for a server that is gone
    without closing its connections. Limits that the URL names come first."""
    limits = {
        "connect_timeout": CONNECT_S,
        "tcp_user_timeout": int(ANSWER_S * 1000),
        "keepalives_idle": CONNECT_S,
        "keepalives_interval": CONNECT_S,
        "keepalives_count": 2,
    }
    is_postgresql = url.get_driver_name() in ("psycopg", "psycopg2")
    given = {name: value for name, value in limits.items() if is_postgresql and name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, pool_size=1, max_overflow=0, connect_args=given)
    if is_postgresql:

        @event.listens_for(engine, "connect")
        def _bound_statements(connection: Any, _: object) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET statement_timeout = {ANSWER_S * 1000:.0f}")
            connection.commit()

    if url.get_backend_name() == "postgresql":
        lock_connections(engine)
    return engine


def migrate(connection: Connection) -> None:
    """Run the migrations that this database has not seen, however long they take."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def write_all(rows: Sequence[dict[str, Any]], logs: Mapping[str, str], connection: Connection) -> None:
    """Write rows of sandboxes, and logs."""
    if rows:
        write(rows, connection)
    if logs:
        write_logs(logs, connection)


@cache
def write_over(dialect: str) -> postgresql.Insert | sqlite.Insert:
    """Return the statement that inserts a row or replaces the one of its id, which costs half of two statements."""
    insert = postgresql.insert(SANDBOXES) if dialect == "postgresql" else sqlite.insert(SANDBOXES)
    columns = {column.name: insert.excluded[column.name] for column in SANDBOXES.c if not column.primary_key}
    return insert.on_conflict_do_update(index_elements=[SANDBOXES.c.id], set_=columns)


def write(rows: Sequence[dict[str, Any]], connection: Connection) -> None:
    """Write rows over what was there."""
    connection.execute(write_over(connection.dialect.name), list(rows))
