"""Restart and archive of sandboxes that were stopped.

1. `restart` starts a stopped, archived or lost sandbox under its id from the files of its last stop (`kept_files`). A
   sandbox without such files is refused: it would look restarted and be empty. A lost one goes back to its last stop.
2. The values of environment variables are kept in memory only. After a restart of this service, a sandbox that has
   some is refused.
3. `archive` makes the files stay until the sandbox is deleted: neither `auto_delete_seconds` nor the age of its row
   removes it. There is no other storage, so the files stay on the worker's disk. As on ROCK only a stopped sandbox is
   archived; here it is archived when the call returns.
"""

from __future__ import annotations

from ale_rock.admin.record import Record
from ale_rock.admin.service import Service, durable
from ale_rock.admin.start_requests import request_for_restart
from ale_rock.admin.workers import WorkerFailed
from ale_rock.schemas import SERVICE_ERROR, RockError

AGAIN_S = 600
"""Seconds after which an automatic archive that failed is tried again."""
ASK = "A stop keeps the files if the start asks for auto_archive_seconds or auto_delete_seconds, or the service is set "
ASK += "to keep_stopped."


async def restart(service: Service, record: Record) -> Record:
    """Start a sandbox again; returns as `Service.start` does. Raises `RockError`."""
    record = service.fleet.get(record.id) or record
    if record.state not in ("stopped", "archived"):
        raise RockError(
            f"The sandbox {record.id} is {record.state}; only one that is stopped or archived is restarted."
        )
    _refuse_without_files(record)
    record.create_request = request_for_restart(record)
    service.start_again(record)
    await service.wait_settled(record, service.settings.answer_within_s)
    if not record.live:
        raise RockError(record.reason or f"The sandbox {record.id} was stopped.", SERVICE_ERROR)
    return record


async def archive(service: Service, record: Record) -> None:
    """Archive a sandbox that is stopped. Raises `RockError`."""
    fleet = service.fleet
    record = fleet.get(record.id) or record
    if record.state != "stopped":
        mend = " Stop it first." if record.live else ""
        raise RockError(f"The sandbox {record.id} is {record.state}; only one that is stopped is archived.{mend}")
    _refuse_without_files(record)
    fleet.move(record, "archiving", "archive")
    problem = await _missing(service, record)
    if problem is not None:
        await durable(fleet.move(record, "stopped", "archive_failed", problem))
        raise RockError(problem, SERVICE_ERROR)
    await durable(fleet.move(record, "archived", "archive_done"))


async def archive_when_due(service: Service, record: Record) -> None:
    """Archive a sandbox whose `auto_archive_seconds` are over; if that fails, it is tried again later."""
    try:
        await archive(service, record)
    except RockError:
        record.archive_s = max(record.archive_s or 0, AGAIN_S)
        service.fleet.deadlines.schedule(record)


def _refuse_without_files(record: Record) -> None:
    if record.snapshot is None:
        why = f" {record.reason.rstrip('.')}." if record.reason else ""
        raise RockError(f"No files of the sandbox {record.id} were kept.{why} {ASK}")


async def _missing(service: Service, record: Record) -> str | None:
    """Return why the files of a stopped sandbox cannot be had; None if a worker has them."""
    for worker in service.fleet.choice.holders(record.snapshot or ""):
        try:
            if record.snapshot in await worker.snapshots():
                return None
        except WorkerFailed:
            continue
    return f"The files of the sandbox {record.id} are on the worker {record.worker}, which does not answer for them."
