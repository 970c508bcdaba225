"""The service's status: workers, queue and sandboxes, for people and for ALE's provider."""

from __future__ import annotations

import time
from collections.abc import Container
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ale_rock.admin.auth import Caller, Gate
from ale_rock.admin.fleet import Fleet
from ale_rock.admin.responses import answer, caller_of, plain_route
from ale_rock.admin.service import Service
from ale_rock.admin.snapshot_names import is_snapshot
from ale_rock.admin.workers import Worker
from ale_rock.schemas import ALE_BASE


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the route."""
    router = APIRouter(prefix=ALE_BASE, route_class=plain_route(gate, "admin", "user"), tags=["ALE"])
    fleet = service.fleet

    @router.get("/status")
    async def status(request: Request) -> Response:
        """Return the workers, the queue and how many sandboxes there are. Only the role
        admin sees where workers are. Other callers see the images of the sandboxes that they see."""
        shown = images_for(caller_of(request), fleet)
        return answer(
            {
                "workers": [describe(worker, shown) for worker in fleet.workers.values()],
                "queue": {"waiting": len(service.queue), "limit": service.settings.queue_limit},
                "sandboxes": {"pending": fleet.counts["pending"], "running": fleet.counts["running"]},
                "events": dict(fleet.events),
                "database": fleet.store.error or "ok",
            }
        )

    return router


def images_for(caller: Caller, fleet: Fleet) -> Container[str] | None:
    """Return the images whose names a caller may see, of all that machines have; None: everything."""
    if caller.role == "admin":
        return None
    records = chain(fleet.live.values(), fleet.ended.values())
    return {record.image for record in records if record.image is not None and caller.sees(record)}


def is_shown(image: str, images: Container[str] | None) -> bool:
    """Whether a name on a worker is an image, and one of these."""
    return (images is None or image in images) and not is_snapshot(image)


def describe(worker: Worker, images: Container[str] | None) -> dict[str, Any]:
    """Return the state of a worker for a caller that sees these images (`images_for`)."""
    offered = worker.offered
    return {
        "name": worker.name,
        "url": worker.url if images is None else f"http://{worker.host_ip}",
        "provider": worker.provider,
        "capabilities": sorted(worker.capabilities or ()),
        "protocols": sorted(offered.protocols),
        "default_image": offered.default_image,
        "alive": not worker.lost,
        "silent_s": round(time.monotonic() - worker.seen, 3),
        "sandboxes": len(worker.sandboxes),
        "starting": worker.starting,
        "not_removed": len(worker.unremoved),
        "warm": worker.warm,
        "images": sorted(name for name in worker.images if is_shown(name, images)),
        "cpus": {"offered": offered.cpus, "promised": round(worker.cpus, 6), "limit": worker.room.cpus},
        "memory_bytes": {
            "offered": offered.memory_bytes,
            "promised": worker.memory,
            "limit": worker.room.memory_bytes,
            "used": worker.memory_used,
        },
        "disk_bytes": {
            "offered": offered.disk_bytes,
            "promised": worker.disk,
            "limit": worker.room.disk_bytes,
            "free": worker.disk_free,
            "is_full": worker.disk_is_full,
        },
        "gpus": {"offered": offered.gpus, "promised": worker.gpus, "limit": worker.room.gpus},
        "cpu_load": worker.cpu_load,
    }
