"""The way to programs that listen in sandboxes: `proxy` for HTTP and WebSockets, `portforward` for TCP in a WebSocket.

1. `/sandboxes/{id}/proxy/a/b` is `/a/b` at port 8080. Another port is named in one of three ways: the path
   `/sandboxes/{id}/proxy/port/3000/a/b`, the header `X-ROCK-Target-Port`, or the query `?rock_target_port=3000`, which
   the program sees too, as on ROCK. `/sandboxes/{id}/vnc/a/b` is `/a/b` at port 8006.
2. Ports below 1024 are refused, as on ROCK: system services are no programs of a client.
3. The worker of the sandbox connects to the port; bodies have no limit. A token of this service is not passed on. A
   client that needs `Authorization` for the program sends the service's token in `X-API-Key`.
"""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket
from yarl import URL

from ale_rock.admin.auth import Gate
from ale_rock.admin.record import Record
from ale_rock.admin.responses import answer, fault_of, plain_route
from ale_rock.admin.sandbox_lookup import find_running, using
from ale_rock.admin.service import Service
from ale_rock.admin.workers import Worker, WorkerFailed
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
from ale_rock.schemas import ROCK_BASE, SERVICE_ERROR, Fault, RockError

PORT_HEADER, PORT_QUERY = "x-rock-target-port", "rock_target_port"
DEFAULT_PORT, VNC_PORT, LEAST_PORT, MOST_PORT = 8080, 8006, 1024, 65535
PATH = re.compile(rf"{ROCK_BASE}/sandboxes/[^/]+/(?P<way>proxy|vnc)(?P<path>/.*)?")
IN_PATH = re.compile(r"/port/(?P<port>[+-]?[0-9]+)(?P<path>/.*)?")
"""A path that names a port; with any other word after `/port/` it is a path of the program, as on ROCK."""


class ProxyRoutes:
    """The routes."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self.service, self.gate = service, gate
        self.router = APIRouter(
            prefix=f"{ROCK_BASE}/sandboxes", route_class=plain_route(gate, "admin", "user"), include_in_schema=False
        )
        for path in (f"/{{sandbox_id}}/{way}{rest}" for way in ("proxy", "vnc") for rest in ("", "/{path:path}")):
            self.router.add_api_route(path, self.request, methods=METHODS)
            self.router.add_api_websocket_route(path, self.websocket)
        self.router.add_api_websocket_route("/{sandbox_id}/portforward", self.forward)

    async def request(self, request: Request) -> Response:
        """Pass a request on to a program."""
        record, worker = await find_running(self.service, request.path_params["sandbox_id"], request.state.caller)
        port, headers = self.target_of(request)
        try:
            with using(record):
                return await pass_request_on(request, worker.client(), url_of(worker, record, f"ports/{port}"), headers)
        except (NoAnswer, WorkerFailed) as error:
            raise lost(worker, record, error) from None

    async def websocket(self, websocket: WebSocket) -> None:
        """Pass a WebSocket on to a program."""
        try:
            record, worker = await self.find(websocket)
            port, headers = self.target_of(websocket)
            await self.carry(websocket, record, worker, f"ports/{port}", headers)
        except Exception as error:
            await websocket.send_denial_response(fault_of(error))

    async def forward(self, websocket: WebSocket) -> None:
        """Carry one TCP connection to the port that the query names."""
        try:
            record, worker = await self.find(websocket)
            port = port_of(websocket.query_params.get("port", ""))
            await self.carry(websocket, record, worker, f"portforward/{port}", [])
        except Exception as error:
            await websocket.send_denial_response(fault_of(error))

    async def find(self, websocket: WebSocket) -> tuple[Record, Worker]:
        """Admit the caller, and return the sandbox and its worker. Raises `AccessDenied` or `RockError`."""
        caller = self.gate.admit(websocket.headers, "admin", "user")
        return await find_running(self.service, websocket.path_params["sandbox_id"], caller)

    async def carry(self, websocket: WebSocket, record: Record, worker: Worker, path: str, headers: Headers) -> None:
        """Pass a WebSocket on to the worker."""
        try:
            with using(record):
                await pass_websocket_on(websocket, worker.client(), url_of(worker, record, path), headers)
        except (NoAnswer, WorkerFailed) as error:
            if isinstance(error, NoAnswer) and error.status is not None:
                detail = (
                    f"The program at this port of the sandbox {record.id} takes no WebSocket (HTTP {error.status})."
                )
                await websocket.send_denial_response(answer(Fault(detail=detail, fault="caller"), 502))
                return
            raise lost(worker, record, error) from None

    def target_of(self, request: HTTPConnection) -> tuple[int, Headers]:
        """Return the port, and the headers for the worker. Raises `RockError`."""
        raw: bytes = request.scope["raw_path"]
        query: bytes = request.scope["query_string"]
        target = raw.decode("latin-1") + (f"?{query.decode('latin-1')}" if query else "")
        found = PATH.fullmatch(raw.decode("latin-1"))
        if found is None or not re.fullmatch(r"[!-~]*", target) or "#" in target:
            raise RockError("The path of the request holds what no URL may hold.")
        path, port = found["path"] or "/", VNC_PORT
        if found["way"] == "proxy":
            path, port = named_port(path, request)
        own = {*self.gate.headers_with_tokens(request.headers), PORT_HEADER, TARGET, CREDENTIALS}
        headers = passed_on(request.headers.raw, own)
        headers = [(CREDENTIALS if name == "authorization" else name, value) for name, value in headers]
        return port, [*headers, (TARGET, path + (f"?{query.decode('latin-1')}" if query else ""))]


def named_port(path: str, request: HTTPConnection) -> tuple[str, int]:
    """Return the path at the program, and the port, which the request may name in one way. Raises `RockError`."""
    found = IN_PATH.fullmatch(path)
    ways = {
        "the path": found and found["port"],
        f"the header {PORT_HEADER}": request.headers.get(PORT_HEADER) or None,
        f"the query {PORT_QUERY}": request.query_params.get(PORT_QUERY),
    }
    named = {way: port for way, port in ways.items() if port is not None}
    if len(named) > 1:
        raise RockError(f"The port is named more than once, in {' and '.join(named)}; name it in one way.")
    return (found["path"] or "/") if found else path, next(map(port_of, named.values()), DEFAULT_PORT)


def port_of(text: str) -> int:
    """Read a port. Raises `RockError`."""
    if not re.fullmatch(r"\+?[0-9]{1,9}", text) or not 0 < int(text) <= MOST_PORT:
        raise RockError(f"{text[:100]!r} is no port; a port is a number from {LEAST_PORT} to {MOST_PORT}.")
    if int(text) < LEAST_PORT:
        raise RockError(
            f"The port {int(text)} is below {LEAST_PORT}, where system services listen, such as SSH at 22; let the "
            f"program listen at a port from {LEAST_PORT} to {MOST_PORT}."
        )
    return int(text)


def url_of(worker: Worker, record: Record, path: str) -> URL:
    """Return the URL of this path at the sandbox's worker."""
    return URL(f"{worker.url}/sandboxes/{record.id}/{path}", encoded=True)


def lost(worker: Worker, record: Record, error: Exception) -> RockError:
    """Return the error for a worker that does not answer."""
    why = f"The sandbox {record.id} is {record.state}: {record.reason}" if not record.live and record.reason else None
    return RockError(why or f"The worker {worker.name} does not answer ({error}).", SERVICE_ERROR)
