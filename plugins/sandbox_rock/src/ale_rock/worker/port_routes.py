"""The worker's routes to programs that listen in its sandboxes: HTTP, WebSockets, and TCP in a WebSocket."""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from yarl import URL

from ale_rock.http.proxy import (
    CREDENTIALS,
    METHODS,
    TARGET,
    Headers,
    NoAnswer,
    pass_request_on,
    pass_websocket_on,
    passed_on,
)
from ale_rock.schemas import Fault, RockError
from ale_rock.worker.responses import EXPECTED, fault_of, json_response
from ale_rock.worker.service import WorkerService


class PortRoutes:
    """The routes of one worker."""

    def __init__(self, service: WorkerService) -> None:
        self.service = service
        self.routes = [
            Route("/sandboxes/{id}/ports/{port:int}", self.request, methods=METHODS),
            WebSocketRoute("/sandboxes/{id}/ports/{port:int}", self.websocket),
            WebSocketRoute("/sandboxes/{id}/portforward/{port:int}", self.forward),
        ]

    async def request(self, request: Request) -> Response:
        """Pass a request on to a program."""
        try:
            ports = self.service.find(request.path_params["id"]).ports
            url, headers = target_of(request)
            session = await ports.session(request.path_params["port"])
            return await pass_request_on(request, session, url, headers)
        except NoAnswer:
            return no_answer(request)
        except EXPECTED as error:
            return fault_of(error)

    async def websocket(self, websocket: WebSocket) -> None:
        """Pass a WebSocket on to a program."""
        try:
            ports = self.service.find(websocket.path_params["id"]).ports
            url, headers = target_of(websocket)
            await pass_websocket_on(websocket, await ports.session(websocket.path_params["port"]), url, headers)
        except NoAnswer:
            await websocket.send_denial_response(no_answer(websocket))
        except EXPECTED as error:
            await websocket.send_denial_response(fault_of(error))

    async def forward(self, websocket: WebSocket) -> None:
        """Carry one TCP connection to a program."""
        try:
            await self.service.find(websocket.path_params["id"]).ports.carry(websocket, websocket.path_params["port"])
        except OSError:
            await websocket.send_denial_response(no_answer(websocket))
        except EXPECTED as error:
            await websocket.send_denial_response(fault_of(error))


def target_of(request: HTTPConnection) -> tuple[URL, Headers]:
    """Return the URL at the program, and the headers that it gets. Raises `RockError`."""
    target = request.headers.get(TARGET, "/")
    if not re.fullmatch(r"/[!-~]*", target) or "#" in target:
        raise RockError(f"{target[:100]!r} is no path of a URL.")
    named = passed_on(request.headers.raw, {"authorization", TARGET})
    headers = [("authorization" if name == CREDENTIALS else name, value) for name, value in named]
    return URL(f"http://127.0.0.1:{request.path_params['port']}{target}", encoded=True), headers


def no_answer(request: HTTPConnection) -> Response:
    """Say that nothing answers."""
    port = request.path_params["port"]
    return json_response(Fault(detail=f"Nothing answers at the port {port} of the sandbox.", fault="caller"), 502)
