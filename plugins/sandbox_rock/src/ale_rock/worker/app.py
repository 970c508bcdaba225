"""The worker's HTTP application: the admin's routes to start and stop sandboxes, ROCK's actions in them, and ALE's own.

1. `Authorization: Bearer TOKEN` is asked for on every route but `/health`, where the worker has a token.
2. ROCK's actions are answered with the finished envelope of ROCK, which the admin passes on as it is. The other routes
   answer plain JSON, errors as `Fault`.
3. The sandboxes live as long as the application: its lifespan starts the provider, registers at the admin, and at its
   end stops every sandbox.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ale.specs.sandbox import SandboxProvider
from ale_rock import schemas
from ale_rock.http.disconnects import while_connected
from ale_rock.schemas import RockError
from ale_rock.worker.attach_routes import AttachRoutes
from ale_rock.worker.command_routes import CommandRoutes
from ale_rock.worker.envd.routes import EnvdRoutes
from ale_rock.worker.image_routes import ImageRoutes
from ale_rock.worker.port_routes import PortRoutes
from ale_rock.worker.protocol_routes import InsideRoutes
from ale_rock.worker.registration import Registration
from ale_rock.worker.responses import EXPECTED, envelope_of, fault_of, json_response, read_body
from ale_rock.worker.rocklet import Rocklet
from ale_rock.worker.service import Held, WorkerService
from ale_rock.worker.settings import WorkerSettings, secret
from ale_rock.worker.snapshot_routes import SnapshotRoutes
from ale_rock.worker.spool import Spool, UploadForm
from ale_rock.worker.tree_routes import TreeRoutes
from ale_rock.worker.validation import readable

ROCK_ACTIONS: dict[str, tuple[type[schemas.SandboxRef], Callable[[Rocklet, Any], Coroutine[Any, Any, BaseModel]]]] = {
    "create_session": (schemas.CreateSessionRequest, Rocklet.create_session),
    "run_in_session": (schemas.RunInSessionRequest, Rocklet.run_in_session),
    "close_session": (schemas.CloseSessionRequest, Rocklet.close_session),
    "execute": (schemas.ExecuteRequest, Rocklet.execute),
    "read_file": (schemas.ReadFileRequest, Rocklet.read_file),
    "write_file": (schemas.WriteFileRequest, Rocklet.write_file),
}


SENT_FOR = schemas.WORKER_ID.lower().encode()


def make_app(provider: SandboxProvider, settings: WorkerSettings) -> Starlette:
    """Return the application of a worker with this provider, which must not be started yet."""
    service = WorkerService(provider, settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(service)
            if settings.admin_url is not None:
                await stack.enter_async_context(Registration(service))
            yield

    worker = WorkerRoutes(service)
    own = (CommandRoutes(service), AttachRoutes(service), InsideRoutes(service), TreeRoutes(service))
    parts = (worker, *own, ImageRoutes(service), SnapshotRoutes(service), PortRoutes(service), EnvdRoutes(service))
    routes = [*(route for part in parts for route in part.routes), *worker.action_routes]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Admission, service)],
        exception_handlers={ClientDisconnect: hung_up},
    )
    app.state.service = service
    return app


async def hung_up(request: Request, error: Exception) -> Response:
    """Return the response for a client that has hung up, which will not read it."""
    return Response(status_code=499)


class Admission:
    """Refuses requests without the worker's token, and late ones (`schemas.WORKER_ID`)."""

    def __init__(self, app: ASGIApp, service: WorkerService) -> None:
        self.app, self.service = app, service
        token = secret(service.settings.token)
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and scope["path"] != "/health":
            sent = dict(scope["headers"])
            if self._expected is not None and not hmac.compare_digest(sent.get(b"authorization", b""), self._expected):
                detail = "This worker asks for its token, as 'Authorization: Bearer TOKEN'."
                await json_response(schemas.Fault(detail=detail, fault="caller"), 401)(scope, receive, send)
                return
            if self.service.is_late(sent.get(SENT_FOR, b"").decode("latin-1")):
                detail = "This request was sent before the worker registered again; nothing was done."
                await json_response(schemas.Fault(detail=detail), 409)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class WorkerRoutes:
    """The routes that start and stop sandboxes, and ROCK's actions in them."""

    def __init__(self, service: WorkerService) -> None:
        self.service, self.settings = service, service.settings
        self.routes = [
            Route("/health", self.health, methods=["GET"]),
            Route("/sandboxes", self.create, methods=["POST"]),
            Route("/sandboxes", self.list, methods=["GET"]),
            Route("/sandboxes/{id}", self.remove, methods=["DELETE"]),
        ]
        self.action_routes = [Route("/sandboxes/{id}/{action}", self.act, methods=["POST"])]

    async def health(self, request: Request) -> Response:
        """Say that the worker runs."""
        return json_response({"status": "ok"})

    async def create(self, request: Request) -> Response:
        """Start a sandbox; the answer comes when commands can run in it."""
        try:
            body = await read_body(request, self.settings.max_body_bytes)
            return json_response(await self.service.create(schemas.CreateSandbox.model_validate_json(body)))
        except EXPECTED as error:
            return fault_of(error)

    async def list(self, request: Request) -> Response:
        """List the sandboxes."""
        return json_response(schemas.HeldSandboxes(sandboxes=self.service.list()))

    async def remove(self, request: Request) -> Response:
        """Stop a sandbox; the answer has its log."""
        try:
            log = await self.service.remove(request.path_params["id"])
        except EXPECTED as error:
            return fault_of(error)
        return json_response(schemas.Removed(log=log))

    async def act(self, request: Request) -> Response:
        """Do one of ROCK's actions in a sandbox; it is ended if the client hangs up."""
        try:
            held = self.service.find(request.path_params["id"])
            result = await self._act(request, held, request.path_params["action"])
        except EXPECTED as error:
            return json_response(envelope_of(error))
        return json_response(schemas.success(result))

    async def _act(self, request: Request, held: Held, action: str) -> BaseModel:
        if action == "upload":
            return await self._upload(request, held)
        if action not in ROCK_ACTIONS:
            raise RockError(f"There is no action {action[:100]!r}; there are {', '.join(schemas.ACTIONS)}.")
        model, method = ROCK_ACTIONS[action]
        asked = model.model_validate_json(await read_body(request, self.settings.max_body_bytes))
        check_id(asked.sandbox_id, request)
        if isinstance(asked, schemas.RunInSessionRequest) and schemas.JOB_EXIT_CODES in request.headers:
            asked.job_exit_codes = request.headers[schemas.JOB_EXIT_CODES] == "true"
        return await while_connected(request, method(held.rocklet, asked))

    async def _upload(self, request: Request, held: Held) -> BaseModel:
        with Spool(self.settings.spool_folder, self.settings.max_file_bytes) as spool:
            form = UploadForm(request.headers.get("content-type", ""), spool)
            await form.read(request.stream())
            check_id(form.text("sandbox_id"), request)
            target = form.target()
            await held.rocklet.put_file(spool, target)
        target = readable(target)
        return schemas.UploadResult(message=f"Wrote {target}.", file_name=target.rpartition("/")[2])


def check_id(sent: str, request: Request) -> None:
    """Refuse a request whose body names another sandbox than its path: the admin has checked only one of them."""
    if sent != request.path_params["id"]:
        raise RockError("The sandbox_id of the request's body is not the one that the request was sent to.")
