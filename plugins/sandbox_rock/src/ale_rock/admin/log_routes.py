"""The logs of sandboxes: of those that run from their worker, of those that ended from the database."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from ale_rock.admin.auth import Gate
from ale_rock.admin.record import Record
from ale_rock.admin.responses import caller_of, plain_route
from ale_rock.admin.sandbox_lookup import find
from ale_rock.admin.service import Service
from ale_rock.admin.workers import CALL_S, Worker, WorkerFailed, read_fault
from ale_rock.http.disconnects import while_connected
from ale_rock.schemas import ROCK_BASE, SERVICE_ERROR, RockError

TEXT = "text/plain; charset=utf-8"


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the route. It has no envelope: its answer is text, its errors are `{"detail": ...}`."""
    router = APIRouter(prefix=ROCK_BASE, route_class=plain_route(gate, "admin", "user"), tags=["Sandbox"])

    @router.get("/sandboxes/{sandbox_id}/logs")
    async def logs(request: Request, sandbox_id: str, follow: bool = False) -> Response:
        """Return what happened in a sandbox, one line for each: commands, their ends, refused network. Of one that
        ended, the end of its log as long as its record is kept. With `follow` the lines come as they are made, until
        the sandbox has ended. Reading a log does not count as a use of the sandbox."""
        record = await find(service, sandbox_id, caller_of(request), ended_too=True)
        if follow and record.state == "pending":
            waiting = service.wait_settled(record, service.settings.answer_within_s)
            await while_connected(request, waiting)
        worker = service.fleet.workers.get(record.worker or "")
        if record.state == "pending" or (record.live and worker is None):
            return Response("", media_type=TEXT)
        if not record.live or worker is None:
            await while_connected(request, service.wait_removed(record.id))
            return Response(await service.fleet.store.log(record.id), media_type=TEXT)
        if follow:
            return StreamingResponse(pieces(record, worker), media_type=TEXT)
        try:
            async with worker.request("GET", f"/sandboxes/{record.id}/logs", timeout_s=CALL_S) as response:
                data = await response.read()
                if response.status != 200:
                    raise WorkerFailed(read_fault(data, response.status, worker.name).detail)
                return Response(data, media_type=TEXT)
        except WorkerFailed as error:
            raise RockError(str(error), SERVICE_ERROR) from None

    return router


async def pieces(record: Record, worker: Worker) -> AsyncIterator[bytes]:
    """Yield the log of a running sandbox as its worker sends it. If it breaks off, the last line says why."""
    try:
        async with worker.request("GET", f"/sandboxes/{record.id}/logs", query="follow=true") as response:
            if response.status != 200:
                raise WorkerFailed(read_fault(await response.read(), response.status, worker.name).detail)
            async for piece in response.content.iter_any():
                yield piece
    except WorkerFailed as error:
        why = record.reason if not record.live and record.reason else str(error)
        yield f"The log breaks off here: {why}\n".encode()
