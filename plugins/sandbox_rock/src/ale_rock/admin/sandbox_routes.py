"""ROCK's Sandbox API: start, state, end and lists of sandboxes. What runs in them is in `forward_routes`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ale_rock.admin.auth import Caller, Gate
from ale_rock.admin.object_storage import StorageTokens
from ale_rock.admin.prepare_images import warm_up
from ale_rock.admin.record import Record
from ale_rock.admin.responses import SandboxNotFound, caller_of, envelope_of, headers_of, rock_route, rock_success
from ale_rock.admin.sandbox_lookup import find
from ale_rock.admin.service import Service
from ale_rock.admin.statistics import describe_use, measure, shares
from ale_rock.http.disconnects import while_connected
from ale_rock.schemas import (
    ROCK_BASE,
    BatchStartRequest,
    BatchStatusRequest,
    RockError,
    SandboxRef,
    StartRequest,
    State,
    WarmupRequest,
    success,
)

PAGE = 500
LARGEST_PAGE = 2000


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(prefix=ROCK_BASE, route_class=rock_route(gate), tags=["Sandbox"])
    tokens = StorageTokens(service.settings.object_storage)

    def waiting(record: Record) -> str | None:
        if record.state != "pending":
            return None
        return f"It waits at place {service.queue.place_of(record)} of {len(service.queue)} in the queue."

    @router.get("/get_status")
    async def get_status(request: Request, sandbox_id: str, include_all_states: bool = False) -> Response:
        """Return the state of a sandbox; only with `include_all_states` also of one that ended."""
        record = await find(service, sandbox_id, caller_of(request), ended_too=include_all_states)
        return rock_success(record.status())

    @router.post("/start_async")
    async def start_async(request: Request, body: StartRequest) -> Response:
        """Start a sandbox and answer once commands can run in it; the same request again finds the same sandbox."""
        record = await service.start(body, caller_of(request), headers_of(request))
        return rock_success(record.start_result(), waiting(record))

    @router.post("/start_batch")
    async def start_batch(request: Request, body: BatchStartRequest) -> Response:
        """Start several sandboxes at once. The result has an envelope for each request, in their order: what
        `/start_async` would answer. One that fails does not touch the others."""
        caller, headers = caller_of(request), headers_of(request)
        gate.charge(request.headers, len(body.requests) - 1)

        async def start_one(asked: dict[str, Any]) -> dict[str, Any]:
            try:
                record = await service.start(StartRequest.model_validate(asked), caller, headers)
            except Exception as error:
                return envelope_of(error)
            return success(record.start_result(), waiting(record))

        return rock_success(await asyncio.gather(*map(start_one, body.requests)))

    @router.post("/start")
    async def start(request: Request, body: StartRequest) -> Response:
        """Do the same as `/start_async`."""
        return await start_async(request, body)

    @router.get("/is_alive")
    async def is_alive(request: Request, sandbox_id: str) -> Response:
        """Say whether commands can run in a sandbox."""
        try:
            record = await find(service, sandbox_id, caller_of(request), ended_too=True)
        except RockError as error:
            return rock_success({"is_alive": False, "message": error.sentence})
        return rock_success({"is_alive": record.alive, "message": record.reason or record.host_name or ""})

    @router.post("/stop")
    async def stop(request: Request, body: SandboxRef) -> Response:
        """Stop a sandbox. It is idempotent."""
        record = await find(service, body.sandbox_id, caller_of(request), ended_too=True)
        await service.stop(record)
        return rock_success(f"{record.id} stopped")

    @router.post("/delete")
    async def delete(request: Request, body: SandboxRef) -> Response:
        """Delete a sandbox that is stopped or archived, with its files. It is idempotent: one that is unknown, or was
        deleted, is a success."""
        with suppress(SandboxNotFound):
            await service.delete(await find(service, body.sandbox_id, caller_of(request), ended_too=True))
        return rock_success(f"{body.sandbox_id} deleted")

    @router.post("/warmup/tasks")
    async def warm_up_workers(request: Request, body: WarmupRequest) -> Response:
        """Bring an image to every worker that has images; the answer comes when that is done. It is for admins."""
        if caller_of(request).role != "admin":
            raise RockError("Only an admin may bring an image to every worker; a start brings it to the one it gets.")
        return rock_success({"workers": await while_connected(request, warm_up(service, body.image))})

    @router.get("/get_token")
    async def get_token(account: str = "primary") -> Response:
        """Return address and credentials of the object storage, the same for every account; null if there is none, and
        then clients upload through this service."""
        return rock_success(await tokens.token())

    @router.get("/sandboxes")
    async def list_sandboxes(
        request: Request,
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
        page_size: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = PAGE,
        user_id: str | None = None,
        experiment_id: str | None = None,
        namespace: str | None = None,
        image: str | None = None,
        state: State | None = None,
    ) -> Response:
        """List live sandboxes, the oldest first; with `state=stopped` or `deleted`, those that ended lately."""
        wanted = {"user": user_id, "experiment": experiment_id, "namespace": namespace, "image": image, "state": state}
        found = list(select(service, caller_of(request), {key: value for key, value in wanted.items() if value}))
        first = (page - 1) * page_size
        items = [record.status() for record in islice(found, first, first + page_size)]
        return rock_success({"items": items, "total": len(found), "has_more": first + page_size < len(found)})

    @router.post("/sandboxes/batch")
    async def batch(request: Request, body: BatchStatusRequest) -> Response:
        """Return the states of several sandboxes; those that are not found are left out."""
        caller = caller_of(request)
        found = (service.fleet.get(sandbox_id) for sandbox_id in body.sandbox_ids)
        return rock_success({"statuses": [each.status() for each in found if each is not None and caller.sees(each)]})

    @router.get("/get_sandbox_statistics")
    async def statistics(request: Request, sandbox_id: str) -> Response:
        """Return how much a sandbox was used, and what it uses now."""
        record = await find(service, sandbox_id, caller_of(request), ended_too=True)
        used, problem = await measure(service, record)
        return rock_success({**describe_use(record), **shares(record, used), "now": used}, problem)

    return router


def select(service: Service, caller: Caller, wanted: dict[str, Any]) -> Iterator[Record]:
    """Yield the sandboxes that a caller sees and that have these attributes."""
    ended = wanted.get("state") in ("stopped", "deleted")
    for record in (service.fleet.ended if ended else service.fleet.live).values():
        if caller.sees(record) and all(getattr(record, name) == value for name, value in wanted.items()):
            yield record
