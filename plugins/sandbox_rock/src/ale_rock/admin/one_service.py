"""One database is of one service at a time: a second one would report the sandboxes of the first as lost.

On SQLite the kernel keeps a lock on a file beside the database and releases it when the process ends, however it ends.
Services on PostgreSQL do not notice each other.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from alembic.util import CommandError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ale.errors import ConfigError

log = logging.getLogger("ale.rock")


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
    """Raise `ConfigError` in the place of errors that say that a database, by its URL, cannot be used: around the start
    of its service alone, whose later errors have other causes."""
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
