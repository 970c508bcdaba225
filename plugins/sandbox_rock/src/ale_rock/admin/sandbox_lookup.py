"""Finds a sandbox for a caller, in memory and then in the database. A sandbox of another user is not found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import time

from ale_rock.admin.auth import Caller
from ale_rock.admin.record import Record
from ale_rock.admin.responses import SandboxNotFound
from ale_rock.admin.service import Service
from ale_rock.admin.workers import Worker
from ale_rock.schemas import BAD_REQUEST, SERVICE_ERROR, RockError

CONFIRM_S = 30.0


async def find(service: Service, sandbox_id: str, caller: Caller, *, ended_too: bool = False) -> Record:
    """Return a sandbox; with `ended_too` also one that has ended. Raises `SandboxNotFound`."""
    record = service.fleet.get(sandbox_id)
    if record is None and ended_too and len(sandbox_id) <= 128 and sandbox_id.isprintable():
        record = await service.fleet.store.find(sandbox_id)
    if record is None or not caller.sees(record):
        raise SandboxNotFound(f"The sandbox {sandbox_id[:128]!r} was not found.")
    if record.unconfirmed and record.settled is not None:
        await asyncio.wait([record.settled], timeout=CONFIRM_S)
    if not (record.live or ended_too):
        why = f": {record.reason}" if record.reason else "."
        raise SandboxNotFound(f"The sandbox {record.id} was not found: it is {record.state}{why}")
    return record


async def find_running(service: Service, sandbox_id: str, caller: Caller) -> tuple[Record, Worker]:
    """Return a sandbox in which commands can run, and its worker. Raises `RockError`; a lost sandbox is the service's
    fault, so that it never looks like a failed command."""
    record = await find(service, sandbox_id, caller, ended_too=True)
    if record.state == "pending":
        raise RockError(
            f"The sandbox {record.id} has not started yet; ask /get_status until it is alive.", SERVICE_ERROR
        )
    worker = service.fleet.workers.get(record.worker or "")
    if record.state != "running" or worker is None:
        lost = record.code == SERVICE_ERROR or record.state == "running"
        why = f": {record.reason}" if record.reason else "."
        raise RockError(f"The sandbox {record.id} is {record.state}{why}", SERVICE_ERROR if lost else BAD_REQUEST)
    return record, worker


@contextmanager
def using(record: Record) -> Iterator[None]:
    """Count a request as a use of its sandbox, which is not idle meanwhile."""
    record.busy += 1
    record.requests += 1
    try:
        yield
    finally:
        record.busy -= 1
        record.used = time()
