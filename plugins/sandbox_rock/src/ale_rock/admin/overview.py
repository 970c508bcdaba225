"""What the web page shows, in one answer: counts, a page of sandboxes, the queue, a page of workers, images, events.

The page asks every two seconds, and there may be tens of thousands of sandboxes. So they are searched in portions, with
other requests answered in between, and only the sandboxes of one page are described. `/events` is for `ale rock logs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from time import time
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ale_rock.admin.auth import Caller, Gate
from ale_rock.admin.fleet import Event
from ale_rock.admin.record import Record
from ale_rock.admin.responses import answer, caller_of, plain_route
from ale_rock.admin.service import Service
from ale_rock.admin.status_routes import describe, images_for, is_shown
from ale_rock.admin.workers import Worker
from ale_rock.schemas import ALE_BASE

PAGE, LARGEST_PAGE, WORKERS = 25, 500, 10
IMAGES, LINES, EVENTS = 50, 100, 50
PORTION = 2000
T = TypeVar("T")
Shown = Literal["live", "pending", "running", "stopped", "deleted"]
Text = Annotated[str, Query(max_length=256)]
PageNumber = Annotated[int, Query(ge=1, le=10**6)]


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(prefix=ALE_BASE, route_class=plain_route(gate, "admin", "user"), tags=["ALE"])
    fleet = service.fleet

    @router.get("/overview")
    async def overview(
        request: Request,
        state: Shown = "live",
        sandbox: Text = "",
        user: Text = "",
        namespace: Text = "",
        worker: Text = "",
        page: PageNumber = 1,
        page_size: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = PAGE,
        workers_page: PageNumber = 1,
    ) -> Response:
        """Return what the web page shows. Texts select sandboxes that contain them, whatever their case; only
        the role admin sees where workers are. A token with a user's name counts that user's sandboxes alone. A caller
        that is no admin sees the images of these sandboxes alone."""
        caller = caller_of(request)
        wanted = {"id": sandbox, "user": user, "namespace": namespace, "worker": worker}
        among = fleet.ended if state in ("stopped", "deleted") else fleet.live
        found = await search(list(among.values()), caller, state, {key: text for key, text in wanted.items() if text})
        found.reverse()  # the newest first
        names = sorted(fleet.workers)
        shown = images_for(caller, fleet)
        held = ((name, workers) for name, workers in fleet.choice.images().items() if is_shown(name, shown))
        images = sorted(held, key=lambda each: (-each[1], each[0]))
        waiting = [record for record in service.queue.waiting() if caller.sees(record)]
        return answer(
            {
                "at": time(),
                "database": fleet.store.error or "ok",
                "role": caller.role,
                "user": caller.user,
                "counts": count(service, caller),
                "capacity": capacity(fleet.workers.values()),
                "sandboxes": portion(found, page, page_size, describe_sandbox),
                "queue": {"waiting": len(waiting), "limit": service.settings.queue_limit, "lines": lines(waiting)},
                "workers": portion(names, workers_page, WORKERS, lambda name: describe(fleet.workers[name], shown)),
                "images": {
                    "total": len(images),
                    "items": [{"image": image, "workers": workers} for image, workers in images[:IMAGES]],
                },
                "events": [asdict(each) for each in islice(seen_by(caller, reversed(fleet.recent)), EVENTS)],
            }
        )

    @router.get("/events")
    async def events(request: Request, after: Annotated[float, Query(ge=0)] = 0.0) -> Response:
        """Return the latest events of workers, and of the sandboxes that the caller sees, the oldest first; those that
        happened after a time (seconds since 1970)."""
        found = seen_by(caller_of(request), fleet.recent)
        return answer({"events": [asdict(each) for each in found if each.at > after]})

    return router


async def search(records: Sequence[Record], caller: Caller, state: Shown, wanted: dict[str, str]) -> list[Record]:
    """Return the sandboxes that a caller sees, in this state, whose attributes contain these texts."""
    if caller.user is None and state == "live" and not wanted:
        return list(records)
    sought = {key: text.casefold() for key, text in wanted.items()}
    found: list[Record] = []
    for start in range(0, len(records), PORTION):
        found += [
            record
            for record in records[start : start + PORTION]
            if (state in ("live", record.state))
            and caller.sees(record)
            and all(text in (getattr(record, key) or "").casefold() for key, text in sought.items())
        ]
        await asyncio.sleep(0)
    return found


def portion(items: Sequence[T], page: int, size: int, describe_one: Callable[[T], dict[str, Any]]) -> dict[str, Any]:
    """Return one page of some items; a page beyond the last stands for the last."""
    pages = max(1, -(-len(items) // size))
    page = min(page, pages)
    described = [describe_one(each) for each in items[(page - 1) * size : page * size]]
    return {"items": described, "total": len(items), "page": page, "pages": pages}


def count(service: Service, caller: Caller) -> dict[str, int]:
    """Return how many live sandboxes a caller sees: of a user only their number, whatever their state."""
    fleet = service.fleet
    if caller.user is not None:
        return {"live": fleet.per_user[caller.user]}
    pending, running = fleet.counts["pending"], fleet.counts["running"]
    return {"live": pending + running, "pending": pending, "running": running, "workers": len(fleet.workers)}


def capacity(workers: Iterable[Worker]) -> dict[str, dict[str, float]]:
    """Return what all workers have together: offered by the machines, promised to sandboxes, and what may be."""
    sums = {name: {"offered": 0.0, "promised": 0.0, "limit": 0.0} for name in ("cpus", "memory_bytes")}
    for worker in workers:
        for name, offered, promised, limit in (
            ("cpus", worker.offered.cpus, worker.cpus, worker.room.cpus),
            ("memory_bytes", worker.offered.memory_bytes, worker.memory, worker.room.memory_bytes),
        ):
            sums[name]["offered"] += offered
            sums[name]["promised"] += promised
            sums[name]["limit"] += limit
    return sums


def lines(waiting: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the lines of the queue: by priority and namespace, how many wait and since when."""
    found: dict[tuple[int, str], list[float]] = {}
    for record in waiting:
        found.setdefault((record.priority, record.namespace or ""), []).append(record.asked)
    ordered = sorted(found, key=lambda line: (-line[0], line[1]))
    return [
        {"priority": line[0], "namespace": line[1], "waiting": len(found[line]), "since": min(found[line])}
        for line in ordered[:LINES]
    ]


def describe_sandbox(record: Record) -> dict[str, Any]:
    """Return a row of the page's table. Times are seconds since 1970."""
    return {
        "id": record.id,
        "state": record.state,
        "alive": record.alive,
        "user": record.user,
        "namespace": record.namespace,
        "worker": record.worker,
        "image": record.image,
        "priority": record.priority,
        "labels": record.labels,
        "cpus": record.need.cpus,
        "memory_bytes": record.need.memory_bytes,
        "created": record.created,
        "started": record.started,
        "stopped": record.stopped,
        "requests": record.requests,
        "reason": record.reason,
    }


def seen_by(caller: Caller, events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events that a caller may see: those of workers, and those of its sandboxes."""
    return (each for each in events if each.sandbox is None or caller.user in (None, each.user))
