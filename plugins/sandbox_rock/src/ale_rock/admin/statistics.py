"""How much a sandbox was used, and what it uses now."""

from __future__ import annotations

from time import time
from typing import Any

from ale_rock.admin.record import Record
from ale_rock.admin.service import Service
from ale_rock.admin.workers import WorkerFailed
from ale_rock.schemas import Usage


def describe_use(record: Record) -> dict[str, Any]:
    """Return how much a sandbox was used, as the admin knows it."""
    end = record.stopped if record.stopped is not None and not record.live else time()
    return {
        "sandbox_id": record.id,
        "state": record.state,
        "worker": record.worker,
        "waited_s": round((record.started or end) - record.asked, 6),
        "lived_s": round(end - record.started, 6) if record.started is not None else 0.0,
        "idle_s": round(time() - record.used, 6) if record.alive and not record.busy else 0.0,
        "requests": record.requests,
        "requests_now": record.busy,
        "cpus": record.need.cpus,
        "memory_bytes": record.need.memory_bytes,
        "disk_bytes": record.need.disk_bytes,
        "gpus": record.need.gpus,
    }


async def measure(service: Service, record: Record) -> tuple[Usage | None, str | None]:
    """Return what a sandbox uses now, or why that is not known. Measuring does not count as a use of the sandbox."""
    worker = service.fleet.workers.get(record.worker or "")
    if not record.alive or worker is None:
        return None, None
    try:
        return await worker.usage(record.id), None
    except WorkerFailed as error:
        return None, str(error)


def shares(record: Record, used: Usage | None) -> dict[str, Any]:
    """Return what ROCK's own statistics have: percentages of what the sandbox may use, and bytes of the network."""
    used, need = used or Usage(), record.need
    came, went = used.network_in_bytes, used.network_out_bytes
    return {
        "cpu": percent(used.cpu_cores, need.cpus),
        "mem": percent(used.memory_bytes, need.memory_bytes),
        "disk": percent(used.disk_bytes, need.disk_bytes),
        "net": None if came is None or went is None else came + went,
    }


def percent(used: float | None, limit: float) -> float | None:
    """Return a share of a limit; None if either is unknown."""
    return None if used is None or not limit else round(100 * used / limit, 2)
