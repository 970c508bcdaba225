"""A sandbox of the service as E2B describes it. One whose files are kept after its stop is `paused`."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from ale_rock.admin.record import Record, iso
from ale_rock.admin.service import Service
from ale_rock.admin.start_requests import LONGEST_S
from ale_rock.e2b import DOMAIN, ENVD_VERSION

MIB = 1 << 20
BASE = "base"
"""The template that stands for the workers' default image."""
STATES = ("running", "paused")


def state_of(record: Record) -> str | None:
    """Return E2B's word for the state; None if E2B has none, because the sandbox has ended."""
    if record.live:
        return "running"
    kept = record.snapshot is not None and (record.state in ("archiving", "archived") or record.archive_s is not None)
    return "paused" if kept and record.state != "deleted" else None


def end_of(record: Record) -> float:
    """Return when a sandbox ends, or has ended."""
    if not record.live:
        return record.stopped or record.created
    return (record.started or record.created) + min(record.lifetime_s or LONGEST_S, LONGEST_S)


def keep_for(service: Service, record: Record, timeout_s: float) -> None:
    """Let a sandbox live for so long from now on, but not longer than the service lets any."""
    began = record.started or time.time()
    record.lifetime_s = min(time.time() - began + timeout_s, service.settings.lifetime_s or LONGEST_S)
    service.fleet.deadlines.schedule(record)
    service.fleet.store.save(record)


def describe_access(record: Record, token: str | None) -> dict[str, Any]:
    """Return what E2B's SDK needs to reach a sandbox."""
    secrets = {} if token is None else {"envdAccessToken": token, "trafficAccessToken": token}
    return {
        "templateID": record.image or BASE,
        "sandboxID": record.id,
        "clientID": record.worker or "",
        "envdVersion": ENVD_VERSION,
        "domain": DOMAIN,
        **secrets,
    }


def describe(record: Record) -> dict[str, Any]:
    """Return a sandbox as a list shows it."""
    return {
        "templateID": record.image or BASE,
        "sandboxID": record.id,
        "clientID": record.worker or "",
        "startedAt": iso(record.started or record.created),
        "endAt": iso(end_of(record)),
        "cpuCount": math.ceil(record.need.cpus),
        "memoryMB": record.need.memory_bytes // MIB,
        "diskSizeMB": record.need.disk_bytes // MIB,
        "state": state_of(record),
        "envdVersion": ENVD_VERSION,
        "metadata": record.labels,
    }


def describe_in_detail(record: Record, token: str | None) -> dict[str, Any]:
    """Return a sandbox as `get_info` shows it."""
    network = json.loads(record.kept_order or "{}").get("spec", {}).get("network", "none")
    return {
        **describe(record),
        **({} if token is None else {"envdAccessToken": token}),
        "domain": DOMAIN,
        "allowInternetAccess": {"none": False, "full": True}.get(network),
        "lifecycle": {"autoResume": False, "onTimeout": "kill" if record.archive_s is None else "pause"},
        **({"pauseMode": "filesystem"} if state_of(record) == "paused" else {}),
    }
