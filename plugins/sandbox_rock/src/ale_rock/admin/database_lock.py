"""Keeps a database for one service: a second one would report the sandboxes of the first as lost.

1. On SQLite the kernel keeps a lock on a file beside the database (`database_of_this_service`) and releases it when the
   process ends, however it ends.
2. On PostgreSQL the connection that reads and writes takes an advisory lock of its session before anything else
   (`lock_connections`). A service that has lost the lock cannot write, because its next connection must take the lock
   first.
3. The server frees that lock when it notices that the connection has ended: at once after `kill -9`, and within
   `NOTICED_S` after a machine or a network has vanished. So a service waits a little longer than that before it gives
   up. A service that finds another one in its place after its connection was cut ends (`DatabaseTaken`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from alembic.util import CommandError
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ale.errors import ConfigError

log = logging.getLogger("ale.rock")
NOTICED_S = 15
WAIT_S, AGAIN_S = NOTICED_S + 5.0, 0.1
KEY = int.from_bytes(b"rock")
"""The first key of this advisory lock; the second key stands for the schema that holds the tables."""
SCHEMA = "hashtext(coalesce(current_schema(), ''))"
TAKE = f"SELECT pg_try_advisory_lock({KEY}, {SCHEMA})"
HOLDER = f"""SELECT pid, host(client_addr) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND granted AND datid = database AND datname = current_database()
    AND classid = {KEY} AND objid::bigint = {SCHEMA}::bigint & 4294967295"""
NOTICE = f"""SELECT set_config(name, wanted, false) FROM pg_settings JOIN (VALUES ('tcp_keepalives_idle', '5'),
    ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '2'), ('tcp_user_timeout', '{NOTICED_S * 1000}'))
    AS limits (setting_name, wanted) ON name = setting_name WHERE source <> 'client'"""
"""Settings with which the server notices in time that this machine or the network has vanished; its default is two
hours."""


class DatabaseTaken(SQLAlchemyError):
    """Another service holds the database."""


@contextmanager
def database_of_this_service(database: str) -> Iterator[None]:
    """Hold a database, by its URL, while a service uses it. Raises `ConfigError` if another one does."""
    lock = _lock(make_url(database))
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def database_errors_in_words(database: str) -> Iterator[None]:
    """Raise `ConfigError` in the place of errors that mean that a database, by its URL, cannot be used. This is for the
    start of a service alone; later errors have other causes."""
    url = make_url(database)
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"The database {url!r} needs {error.name}, which is not installed; for PostgreSQL: "
            "pip install 'ale-plugin-rock[postgres]'."
        ) from None
    except (SQLAlchemyError, CommandError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        reason = " ".join(str(cause).split()).rstrip(".?")
        raise ConfigError(f"The database {url!r} cannot be used: {reason}.") from None


def lock_connections(engine: Engine) -> None:
    """Make each connection of an engine on PostgreSQL take the lock; the engine has one connection at a time. If it
    cannot, this and all later uses of the engine raise `DatabaseTaken`, because the service's memory no longer agrees
    with the database."""
    taken: DatabaseTaken | None = None

    @event.listens_for(engine, "connect")
    def take(connection: Any, _: object) -> None:
        nonlocal taken
        try:
            if taken is None and not _take(connection):
                taken = DatabaseTaken(_describe_holder(connection))
            if taken is not None:
                raise taken
        except BaseException:
            connection.close()  # the pool forgets a connection that is refused here
            raise


def _take(connection: Any) -> bool:
    _ask(connection, NOTICE)
    until, waiting = time.monotonic() + WAIT_S, False
    while not _ask(connection, TAKE)[0][0]:
        if time.monotonic() > until:
            return False
        if not waiting:
            log.warning("A service holds the database still; waiting up to %.0f s for it to end.", WAIT_S)
            waiting = True
        time.sleep(AGAIN_S)
    return True


def _describe_holder(connection: Any) -> str:
    found = _ask(connection, HOLDER)
    pid, address = found[0] if found else (None, None)
    where = f", connected from {address}," if address else ""
    mend = f" If it runs no longer, end its connection: SELECT pg_terminate_backend({pid})" if pid else ""
    return f"another service{where} uses it; end that one, or name another database by --database.{mend}"


def _ask(connection: Any, statement: str) -> list[Any]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)
        rows: list[Any] = cursor.fetchall()
    connection.commit()  # the lock and the settings are the session's
    return rows


def _lock(url: URL) -> int | None:
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    try:
        lock = os.open(f"{url.database}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"The database {url!r} cannot be used: {error.strerror}.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f"Another service uses the database {url!r}; end it, or name another by --database sqlite:///FILE."
        ) from None
    except OSError as error:  # some file systems have no locks
        log.warning("The database %r is not locked (%s): see that no other service uses it.", url, error.strerror)
    return lock
