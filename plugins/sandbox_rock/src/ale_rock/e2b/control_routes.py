"""E2B's control plane: sandboxes are started, listed, paused, resumed and ended.

1. A template is the name of an image; `base` is the workers' default image. The time-out is a lifetime, which
   `set_timeout` and `connect` change; at its end the sandbox is stopped, or paused if that was asked for.
2. A pause keeps the files and ends the processes (`kept_files`), and the sandbox is archived, so it stays until it is
   killed. `connect` starts it again from these files.
3. A key of `Idempotency-Key` becomes the sandbox's id, so a request that is sent again finds the same sandbox.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import parse_qsl, unquote
from uuid import uuid4

from fastapi import APIRouter, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ale_rock.admin.auth import Caller, Gate
from ale_rock.admin.command_routes import documented
from ale_rock.admin.persistence import archive, restart
from ale_rock.admin.quick_routes import QuickRoute
from ale_rock.admin.record import Record
from ale_rock.admin.responses import answer, caller_of, headers_of
from ale_rock.admin.sandbox_lookup import find
from ale_rock.admin.service import Service
from ale_rock.admin.statistics import measure
from ale_rock.e2b.access_tokens import AccessTokens
from ale_rock.e2b.errors import E2bError, e2b_error_of
from ale_rock.e2b.requests import Connect, NewSandbox, Pause, Refresh, SetTimeout, spec_of
from ale_rock.e2b.sandboxes import (
    STATES,
    describe,
    describe_access,
    describe_in_detail,
    end_of,
    keep_for,
    state_of,
)
from ale_rock.http.disconnects import while_connected
from ale_rock.http.proxy import METHODS
from ale_rock.schemas import StartRequest

PAGE = 100
KINDS = "/snapshots", "/templates", "/v2/templates", "/v3/templates", "/volumes", "/secrets"
NOT_OFFERED = (
    *(f"/sandboxes/{{sandbox_id}}/{action}" for action in ("fork", "snapshots", "network", "logs")),
    *(f"{kind}{rest}" for kind in KINDS for rest in ("", "/{rest:path}")),
)
OF_A_SANDBOX = "/files", "/process.Process/{method}", "/filesystem.Filesystem/{method}"


def e2b_route(gate: Gate) -> type[QuickRoute]:
    """Return the class of E2B's routes."""

    class E2bRoute(QuickRoute):
        """Errors have E2B's shape."""

        def admit(self, headers: Mapping[str, str]) -> Caller:
            return gate.admit(headers, "admin", "user")

        def refuse(self, error: Exception) -> Response:
            return e2b_error_of(error).response()

    return E2bRoute


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(route_class=e2b_route(gate), tags=["E2B"])
    tokens = AccessTokens(service.settings)

    async def named(request: Request, sandbox_id: str) -> Record:
        """Return the sandbox of a request, which runs or is paused. Raises `SandboxNotFound`."""
        record = await find(service, sandbox_id, caller_of(request), ended_too=True)
        record = service.fleet.get(record.id) or record
        if state_of(record) is None:
            raise E2bError(404, f"The sandbox {record.id} was not found: it is {record.state}.")
        return record

    async def running(request: Request, sandbox_id: str) -> Record:
        record = await named(request, sandbox_id)
        if not record.live:
            raise E2bError(404, f"The sandbox {record.id} was not found among those that run: it is paused.")
        return record

    @router.post("/v2/sandboxes")
    async def create(request: Request, body: NewSandbox) -> Response:
        """Start a sandbox."""
        caller, key = caller_of(request), request.headers.get("idempotency-key")
        digest = hashlib.sha256(f"{caller.acts_for}\n{key}".encode()).hexdigest()
        sandbox_id = uuid4().hex if key is None else digest[:32]
        start = StartRequest(
            spec=spec_of(body, service.settings.network),
            sandbox_id=sandbox_id,
            auto_archive_seconds=0 if body.autoPause else None,
        )
        try:
            record = await while_connected(request, service.start(start, caller, headers_of(request)))
        except ClientDisconnect:  # the start goes on, and the request may be sent again
            if (begun := service.fleet.live.get(sandbox_id)) is not None:
                keep_for(service, begun, body.timeout)
            raise
        keep_for(service, record, body.timeout)
        if not record.alive:
            await end(service, record)
            raise E2bError(503, f"The sandbox {record.id} still waited in the queue; try again later.")
        return answer(describe_access(record, tokens.issue(request.headers, record.id)), 201)

    @router.post("/sandboxes")
    async def create_by_older_sdk(request: Request, body: NewSandbox) -> Response:
        """Start a sandbox for an older SDK, which always asks for access to the internet."""
        access = body.allow_internet_access and None
        return await create(request, body.model_copy(update={"allow_internet_access": access}))

    @router.get("/sandboxes")
    async def list_running(request: Request, metadata: str = "") -> Response:
        """List the sandboxes that run."""
        found = select(service.fleet.live.values(), caller_of(request), metadata, ("running",))
        return answer([describe(each) for each in found])

    @router.get("/v2/sandboxes")
    async def list_sandboxes(
        request: Request,
        metadata: str = "",
        state: Annotated[list[str] | None, Query()] = None,
        template: str | None = None,
        startedAfter: datetime | None = None,
        order: str = "desc",
        limit: Annotated[int, Query(ge=1, le=1000)] = PAGE,
        nextToken: Annotated[int, Query(ge=0, le=10**9)] = 0,
    ) -> Response:
        """List the sandboxes that run or are paused, page by page, the latest first."""
        states = [word for text in state or STATES for word in text.split(",") if word]
        if unknown := set(states) - set(STATES):
            raise E2bError(400, f"state is one of {', '.join(STATES)}, and not {', '.join(sorted(unknown))[:200]}.")
        if order not in ("asc", "desc"):
            raise E2bError(400, f"order is asc or desc, and not {order[:100]}.")
        known = [*service.fleet.live.values(), *service.fleet.ended.values()]
        if "paused" in states:
            known += [each for each in await service.fleet.store.archived() if service.fleet.get(each.id) is None]
        found = select(known, caller_of(request), metadata, states)
        if startedAfter is not None:
            after = startedAfter if startedAfter.tzinfo is not None else startedAfter.replace(tzinfo=UTC)
            found = [each for each in found if (each.started or each.created) >= after.timestamp()]
        if template is not None:
            found = [each for each in found if describe(each)["templateID"] == template]
        found.sort(key=lambda each: each.started or each.created, reverse=order == "desc")
        page = answer([describe(each) for each in found[nextToken : nextToken + limit]])
        if nextToken + limit < len(found):
            page.headers["X-Next-Token"] = str(nextToken + limit)
        return page

    @router.get("/sandboxes/{sandbox_id}")
    async def get_info(request: Request, sandbox_id: str) -> Response:
        """Describe a sandbox."""
        record = await named(request, sandbox_id)
        return answer(describe_in_detail(record, tokens.issue(request.headers, record.id)))

    @router.delete("/sandboxes/{sandbox_id}")
    async def kill(request: Request, sandbox_id: str) -> Response:
        """End a sandbox and forget its files."""
        await end(service, await named(request, sandbox_id))
        return Response(status_code=204)

    @router.post("/sandboxes/{sandbox_id}/timeout")
    async def set_timeout(request: Request, sandbox_id: str, body: SetTimeout) -> Response:
        """Set how long a sandbox lives from now on."""
        keep_for(service, await running(request, sandbox_id), body.timeout)
        return Response(status_code=204)

    @router.post("/sandboxes/{sandbox_id}/refreshes")
    async def refresh(request: Request, sandbox_id: str, body: Refresh) -> Response:
        """Let a sandbox live at least so long from now on."""
        extend(service, await running(request, sandbox_id), body.duration)
        return Response(status_code=204)

    @router.post("/sandboxes/{sandbox_id}/pause", openapi_extra=documented(Pause))
    async def pause(request: Request, sandbox_id: str) -> Response:
        """Stop a sandbox and keep its files; older SDKs send no body."""
        if Pause.model_validate_json(await request.body() or b"{}").memory:
            raise E2bError(
                400, "This service keeps the files of a paused sandbox, and not its processes: mode is 'filesystem'."
            )
        record = await named(request, sandbox_id)
        if not record.live:
            raise E2bError(409, f"The sandbox {record.id} is paused already.")
        problem = await service.kept.keep(record)
        if problem is not None:
            raise E2bError(400, f"The sandbox {record.id} is not paused, since its files cannot be kept: {problem}")
        await service.halt(record, "stop")
        await archive(service, record)
        return Response(status_code=204)

    @router.post("/v2/sandboxes/{sandbox_id}/connect")
    async def connect(request: Request, sandbox_id: str, body: Connect) -> Response:
        """Start a sandbox again if it is paused, and let it live at least so long from now on."""
        record, timeout_s = await named(request, sandbox_id), body.timeout
        was_paused = not record.live
        if was_paused:
            record = await restart(service, record)
            if not record.alive:
                raise E2bError(503, f"The sandbox {record.id} still waits in the queue; try again later.")
            keep_for(service, record, timeout_s)
        else:
            extend(service, record, timeout_s)
        access = describe_access(record, tokens.issue(request.headers, record.id))
        return answer(access, 201 if was_paused else 200)

    @router.post("/sandboxes/{sandbox_id}/connect")
    async def connect_by_older_sdk(request: Request, sandbox_id: str, body: Connect) -> Response:
        """Connect for an older SDK."""
        return await connect(request, sandbox_id, body)

    @router.post("/sandboxes/{sandbox_id}/resume")
    async def resume(request: Request, sandbox_id: str, body: Connect) -> Response:
        """Start a paused sandbox again, for an older SDK."""
        record = await named(request, sandbox_id)
        if record.live:
            raise E2bError(409, f"The sandbox {record.id} runs already.")
        return await connect(request, sandbox_id, body)

    @router.get("/sandboxes/{sandbox_id}/metrics")
    async def metrics(request: Request, sandbox_id: str) -> Response:
        """Return what a sandbox uses now, as a list with one entry."""
        record = await named(request, sandbox_id)
        used, _ = await measure(service, record)
        if used is None:
            return answer([])
        now, cpus = time.time(), math.ceil(record.need.cpus)
        entry = {
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
            "timestampUnix": int(now),
            "cpuCount": cpus,
            "cpuUsedPct": round(100 * (used.cpu_cores or 0.0) / cpus, 2),
            "memUsed": used.memory_bytes or 0,
            "memTotal": record.need.memory_bytes,
            "memCache": 0,
            "diskUsed": used.disk_bytes or 0,
            "diskTotal": record.need.disk_bytes,
        }
        return answer([entry])

    async def refuse(request: Request) -> Response:
        raise E2bError(
            501,
            f"This service does not offer {request.method} {request.url.path[:200]} of E2B's API; docs/rock_e2b.md "
            "lists what it offers.",
        )

    async def refuse_without_sandbox(request: Request) -> Response:
        raise E2bError(
            400,
            "The request names no sandbox: set E2B_SANDBOX_URL to the URL of this service, so that E2B's SDK sends the "
            "header E2b-Sandbox-Id, and update an SDK that does not; URLs of `download_url` and `upload_url` need that "
            "header too.",
        )

    for path in NOT_OFFERED:
        router.add_api_route(path, refuse, methods=METHODS, include_in_schema=False)
    for path in OF_A_SANDBOX:
        router.add_api_route(path, refuse_without_sandbox, methods=METHODS, include_in_schema=False)
    return router


async def end(service: Service, record: Record) -> None:
    """Stop a sandbox, without keeping its files, and forget it. Raises `RockError`."""
    await service.halt(record)
    await service.delete(record)


def extend(service: Service, record: Record, timeout_s: float) -> None:
    """Let a sandbox live at least so long from now on."""
    if end_of(record) < time.time() + timeout_s:
        keep_for(service, record, timeout_s)


def select(records: Iterable[Record], caller: Caller, metadata: str, states: Collection[str]) -> list[Record]:
    """Return the sandboxes that a caller sees in these states, with this metadata: a query whose names and values are
    themselves quoted, as E2B's SDK sends it."""
    pairs = parse_qsl(metadata, keep_blank_values=True)
    wanted = {unquote(name): unquote(value) for name, value in pairs}
    return [
        record
        for record in records
        if caller.sees(record) and state_of(record) in states and wanted.items() <= record.labels.items()
    ]
