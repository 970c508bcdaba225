"""The table of logs. A worker hands the log over when a sandbox ends; it is kept, compressed, as long as the sandbox's
row."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping

from sqlalchemy import Column, Connection, Float, LargeBinary, String, Table, bindparam, delete, insert, select

from ale_rock.admin.tables import METADATA

LOGS = Table(
    "logs",
    METADATA,
    Column("id", String(128), primary_key=True),
    Column("ended", Float(53), nullable=False, index=True),
    Column("text", LargeBinary, nullable=False),
)
_DELETE = delete(LOGS).where(LOGS.c.id == bindparam("row"))
_INSERT = insert(LOGS)


def write_logs(logs: Mapping[str, str], connection: Connection) -> None:
    """Write the logs of these sandboxes over what was there."""
    now = time.time()
    rows = [{"id": each, "ended": now, "text": zlib.compress(text.encode(), 1)} for each, text in logs.items()]
    connection.execute(_DELETE, [{"row": each} for each in logs])
    connection.execute(_INSERT, rows)


def read_log(sandbox_id: str, connection: Connection) -> str:
    """Return the log of a sandbox that has ended; the empty text if none was handed over."""
    found = connection.execute(select(LOGS.c.text).where(LOGS.c.id == sandbox_id)).scalar()
    return "" if found is None else zlib.decompress(found).decode()


def forget_logs(before: float, connection: Connection) -> None:
    """Delete the logs of sandboxes that ended before a time."""
    connection.execute(delete(LOGS).where(LOGS.c.ended < before))
