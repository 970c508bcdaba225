"""The worker's routes for ALE's own provider about a sandbox as a whole: its spec, for `Attaches`, and the connections
that its network policy refused."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ale_rock.http.disconnects import ClosingStream
from ale_rock.schemas import SandboxDescription
from ale_rock.worker.command_routes import protocols_of
from ale_rock.worker.responses import EXPECTED, fault_of, json_response, query, whole_number
from ale_rock.worker.service import WorkerService

MOST = 1 << 31


class AttachRoutes:
    """The routes of one worker."""

    def __init__(self, service: WorkerService) -> None:
        self.service = service
        self.routes = [
            Route("/sandboxes/{id}/spec", self.describe, methods=["GET"]),
            Route("/sandboxes/{id}/refusals", self.follow_refusals, methods=["GET"]),
        ]

    async def describe(self, request: Request) -> Response:
        """Return the spec with which a sandbox was started or reset, without its files, and its protocols."""
        try:
            spec = self.service.find(request.path_params["id"]).request.spec
        except EXPECTED as error:
            return fault_of(error)
        bare = spec.model_copy(update={"files": {}})
        return json_response(SandboxDescription(spec=bare, protocols=protocols_of(self.service.provider)))

    async def follow_refusals(self, request: Request) -> Response:
        """Send the connections that a sandbox was refused, as they come; `after` is how many the caller has."""
        try:
            box = self.service.find(request.path_params["id"]).sandbox
            after = whole_number(query(request).get("after", "0"), "after", MOST)
        except EXPECTED as error:
            return fault_of(error)
        return ClosingStream(self.service.refusals.follow(box.id, after), media_type="application/x-ndjson")
