"""The worker's routes for snapshots: the files of stopped sandboxes, and images that are made of sandboxes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ale_rock.http.disconnects import while_connected
from ale_rock.schemas import HeldSnapshots, RockError, SnapshotTaken, TakeSnapshot
from ale_rock.worker.responses import EXPECTED, fault_of, json_response, query, read_body
from ale_rock.worker.service import WorkerService


class SnapshotRoutes:
    """The routes of one worker."""

    def __init__(self, service: WorkerService) -> None:
        self.service = service
        self.routes = [
            Route("/sandboxes/{id}/snapshot", self.take, methods=["POST"]),
            Route("/snapshots", self.list, methods=["GET"]),
            Route("/snapshots", self.remove, methods=["DELETE"]),
        ]

    async def take(self, request: Request) -> Response:
        """Make a snapshot of a sandbox; it is not made if the caller hangs up."""
        try:
            asked = TakeSnapshot.model_validate_json(await read_body(request, self.service.settings.max_body_bytes))
            work = self.service.snapshot(request.path_params["id"], asked.name)
            return json_response(SnapshotTaken(name=await while_connected(request, work)))
        except EXPECTED as error:
            return fault_of(error)

    async def list(self, request: Request) -> Response:
        """List the snapshots that have a name."""
        try:
            return json_response(HeldSnapshots(snapshots=await self.service.snapshots()))
        except EXPECTED as error:
            return fault_of(error)

    async def remove(self, request: Request) -> Response:
        """Remove the snapshot that the query names."""
        try:
            name = query(request).get("name", "")
            if not name:
                raise RockError("The query names no snapshot.")
            await self.service.remove_snapshot(name)
        except EXPECTED as error:
            return fault_of(error)
        return json_response({})
