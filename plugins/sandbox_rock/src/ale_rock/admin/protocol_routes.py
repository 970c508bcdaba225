"""ALE's own routes to the protocols of a sandbox (streamed output, shells, trees, resets), to its description, and to
the connections that its network policy refused. The worker does the work. `command_routes` has what every sandbox can
do, `snapshot_routes` what outlives one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Annotated

from aiohttp import ClientResponse
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from ale_rock.admin.auth import Gate
from ale_rock.admin.command_routes import documented, pass_on, query_of
from ale_rock.admin.record import Record
from ale_rock.admin.responses import caller_of, plain_route
from ale_rock.admin.sandbox_lookup import find_running
from ale_rock.admin.service import Service
from ale_rock.admin.worker_forwarding import ask, stream
from ale_rock.admin.workers import Worker, WorkerFailed
from ale_rock.http.disconnects import ClosingStream, while_connected
from ale_rock.schemas import ALE_BASE, ExecCommand, OpenShell, ResetSandbox

ShellName = Annotated[str, Path(pattern=r"^[0-9a-f]{1,32}$")]


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(prefix=f"{ALE_BASE}/sandboxes", route_class=plain_route(gate, "admin", "user"), tags=["ALE"])

    @router.post("/{sandbox_id}/stream", openapi_extra=documented(ExecCommand))
    async def stream_command(request: Request, sandbox_id: str) -> Response:
        """Run a command and send its output as it is written: `Streams.exec_stream`, as frames."""
        body = await request.body()
        record, worker = await find_running(service, sandbox_id, caller_of(request))
        return await while_connected(request, stream(record, worker, "stream", command=body))

    @router.get("/{sandbox_id}/spec")
    async def describe(request: Request, sandbox_id: str) -> Response:
        """Return the spec with which a sandbox was started or reset, without its files: for `Attaches`."""
        return await pass_on(service, request, sandbox_id, "spec")

    @router.get("/{sandbox_id}/refusals")
    async def follow_refusals(
        request: Request, sandbox_id: str, after: Annotated[int, Query(ge=0, lt=1 << 31)] = 0
    ) -> Response:
        """Send the connections that a sandbox was refused by its network policy, as they come, each a line of JSON;
        `after` is how many of them the caller has. Following them does not count as a use of the sandbox."""
        record, worker = await find_running(service, sandbox_id, caller_of(request))
        pieces = refusals(record, worker, after, service.followed)
        return ClosingStream(pieces, media_type="application/x-ndjson")

    @router.post("/{sandbox_id}/shells", openapi_extra=documented(OpenShell))
    async def open_shell(request: Request, sandbox_id: str) -> Response:
        """Open a shell: `Shells.open_shell`."""
        return await pass_on(service, request, sandbox_id, "shells")

    @router.post("/{sandbox_id}/shells/{shell}/run", openapi_extra=documented(ExecCommand))
    async def run_in_shell(request: Request, sandbox_id: str, shell: ShellName) -> Response:
        """Run a command in a shell."""
        return await pass_on(service, request, sandbox_id, f"shells/{shell}/run")

    @router.delete("/{sandbox_id}/shells/{shell}")
    async def close_shell(request: Request, sandbox_id: str, shell: ShellName) -> Response:
        """End a shell. It is idempotent."""
        return await pass_on(service, request, sandbox_id, f"shells/{shell}")

    @router.put("/{sandbox_id}/tree")
    async def put_tree(request: Request, sandbox_id: str) -> Response:
        """Copy a tree of files in: `Trees.upload_tree`; the body is its pieces, as frames."""
        record, worker = await find_running(service, sandbox_id, caller_of(request))
        headers = {"Content-Type": "application/octet-stream"}
        status, data = await ask(record, worker, "PUT", "tree", request.stream(), headers, query_of(request))
        return Response(data, status, media_type="application/json")

    @router.get("/{sandbox_id}/tree")
    async def get_tree(request: Request, sandbox_id: str) -> Response:
        """Copy a tree of files out: `Trees.download_tree`."""
        record, worker = await find_running(service, sandbox_id, caller_of(request))
        return await while_connected(request, stream(record, worker, "tree", query_of(request)))

    @router.post("/{sandbox_id}/reset", openapi_extra=documented(ResetSandbox))
    async def reset(request: Request, sandbox_id: str) -> Response:
        """Make a sandbox as new, with another environment, other files and labels: `Resets.reset`."""
        spec = ResetSandbox.model_validate_json(await request.body()).spec
        response = await pass_on(service, request, sandbox_id, "reset")
        record = service.fleet.live.get(sandbox_id)
        if response.status_code == 200 and record is not None:
            record.labels, record.env = dict(spec.labels), dict(spec.env)
        return response

    return router


async def refusals(
    record: Record, worker: Worker, after: int, followed: set[ClientResponse]
) -> AsyncGenerator[bytes, None]:
    """Yield the refused connections of a sandbox as its worker reports them. If the worker's answer breaks off, so does
    this, and the caller asks again. The answer is in `followed` meanwhile; closing it there ends this."""
    with suppress(WorkerFailed):
        path = f"/sandboxes/{record.id}/refusals"
        async with worker.request("GET", path, query=f"after={after}") as response:
            followed.add(response)
            try:
                if response.status == 200:
                    async for piece in response.content.iter_any():
                        yield piece
            finally:
                followed.discard(response)
