"""Requests to a sandbox as E2B's SDK sends them: to this service's URL, with the headers `E2b-Sandbox-Id` and
`E2b-Sandbox-Port`; or with the header `Host` as `Sandbox.get_host(port)` returns it.

The port 49983 is that of `envd`, which the worker of the sandbox answers for. A request for another port goes to the
program that listens there, as with ROCK's proxy. No token of this service is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ale_rock.admin.auth import AccessDenied, Caller, Gate
from ale_rock.admin.proxy_routes import port_of, url_of
from ale_rock.admin.record import Record
from ale_rock.admin.sandbox_lookup import find_running, using
from ale_rock.admin.service import Service
from ale_rock.admin.workers import Worker, WorkerFailed
from ale_rock.e2b import DOMAIN
from ale_rock.e2b.access_tokens import HEADERS, AccessTokens
from ale_rock.e2b.errors import E2bError, e2b_error_of
from ale_rock.e2b.sandboxes import state_of
from ale_rock.http.proxy import (
    CREDENTIALS,
    TARGET,
    Headers,
    NoAnswer,
    pass_request_on,
    pass_websocket_on,
    passed_on,
)
from ale_rock.schemas import SERVICE_ERROR, RockError

ID_HEADER, PORT_HEADER, ENVD_PORT = "e2b-sandbox-id", "e2b-sandbox-port", 49983
HOST = re.compile(rf"([0-9]{{1,5}})-([a-z0-9_.-]+)\.{re.escape(DOMAIN)}(:[0-9]+)?", re.IGNORECASE)
ENVD_PATH = re.compile(r"/(health|files|process\.Process/[A-Za-z]+|filesystem\.Filesystem/[A-Za-z]+)")
DEBUG_ID = "debug_sandbox_id"
NOT_FOUND = "was not found"
"""The words by which E2B's SDK knows that a sandbox does not run."""


def is_traffic(scope: Scope) -> bool:
    """Whether a request is one to a sandbox. Older SDKs send the headers with requests about sandboxes, too."""
    named = False
    port = b""
    for name, value in scope["headers"]:
        if name == b"e2b-sandbox-id":
            named = True
        elif name == b"e2b-sandbox-port":
            port = value
        elif name == b"host" and HOST.fullmatch(value.decode("latin-1")) is not None:
            return True
    return named and (port not in (b"", str(ENVD_PORT).encode()) or ENVD_PATH.fullmatch(scope["path"]) is not None)


class Traffic:
    """An ASGI middleware that takes every request to a sandbox, whatever its path."""

    def __init__(self, app: ASGIApp, service: Service, gate: Gate) -> None:
        self.app, self.service, self.gate = app, service, gate
        self.tokens = AccessTokens(service.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not is_traffic(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            websocket = WebSocket(scope, receive, send)
            try:
                await self.carry(websocket)
            except Exception as error:
                await websocket.send_denial_response(e2b_error_of(error).response())
        else:
            try:
                response = await self.pass_on(Request(scope, receive, send))
            except Exception as error:
                response = e2b_error_of(error).response()
            await response(scope, receive, send)

    async def pass_on(self, request: Request) -> Response:
        """Pass a request on to the worker."""
        record, worker, port, headers = await self.target_of(request)
        raw: bytes = request.scope["raw_path"]
        path, query = raw.decode("latin-1"), request.scope["query_string"].decode("latin-1")
        if not re.fullmatch(r"/[!-~]*", path) or not re.fullmatch(r"[!-~]*", query) or "#" in path + query:
            raise E2bError(400, "The path of the request holds what no URL may hold.")
        target = f"{path}?{query}" if query else path
        if port == ENVD_PORT:
            if not ENVD_PATH.fullmatch(path):
                raise E2bError(404, f"There is no {path[:200]} at the port {ENVD_PORT}, which is that of E2B's envd.")
            where = f"envd{target}"
        else:
            where, headers = f"ports/{port}", [*headers, (TARGET, target)]
        try:
            with using(record):
                return await pass_request_on(request, worker.client(), url_of(worker, record, where), headers)
        except (NoAnswer, WorkerFailed) as error:
            raise lost(record, worker, error) from None

    async def carry(self, websocket: WebSocket) -> None:
        """Pass a WebSocket on to a program."""
        record, worker, port, headers = await self.target_of(websocket)
        target = websocket.scope["raw_path"].decode("latin-1")
        query = websocket.scope["query_string"].decode("latin-1")
        headers = [*headers, (TARGET, f"{target}?{query}" if query else target)]
        try:
            with using(record):
                await pass_websocket_on(websocket, worker.client(), url_of(worker, record, f"ports/{port}"), headers)
        except NoAnswer as error:
            if error.status is None:
                raise lost(record, worker, error) from None
            raise E2bError(502, f"The program at the port {port} takes no WebSocket (HTTP {error.status}).") from None
        except WorkerFailed as error:
            raise lost(record, worker, error) from None

    async def target_of(self, request: HTTPConnection) -> tuple[Record, Worker, int, Headers]:
        """Return the sandbox, its worker, the port, and the headers to pass on. Raises `AccessDenied`, `RockError` or
        `E2bError`."""
        sandbox_id, port = sandbox_of(request.headers)
        own = {*self.gate.headers_with_tokens(request.headers), *HEADERS, ID_HEADER, PORT_HEADER, TARGET, CREDENTIALS}
        caller = self.admit(request.headers, sandbox_id)
        if sandbox_id == DEBUG_ID:
            raise E2bError(
                400,
                "E2B's SDK has started no sandbox because E2B_DEBUG is set; leave it out, and set E2B_API_URL and "
                "E2B_SANDBOX_URL to the URL of this service.",
            )
        try:
            record, worker = await find_running(self.service, sandbox_id, caller)
        except RockError as error:
            if error.code == SERVICE_ERROR:
                raise
            known = self.service.fleet.get(sandbox_id)
            is_paused = known is not None and caller.sees(known) and state_of(known) == "paused"
            why = "it is paused; Sandbox.connect starts it again." if is_paused else error.sentence
            raise E2bError(502, why if NOT_FOUND in why else f"The sandbox {NOT_FOUND}: {why}") from None
        headers = passed_on(request.headers.raw, own)
        return (
            record,
            worker,
            port,
            [(CREDENTIALS if name == "authorization" else name, value) for name, value in headers],
        )

    def admit(self, headers: Mapping[str, str], sandbox_id: str) -> Caller:
        """Return who sends a request to this sandbox. Raises `AccessDenied`."""
        shown = self.tokens.exchange(headers, sandbox_id)
        host = shown.get("host", "")
        if HOST.fullmatch(host):  # a name that no browser can look up, so no page of another site has it
            origin = shown.pop("origin", None)
            if origin is not None and origin.partition("://")[2] != host:
                raise AccessDenied("No page of another site may send requests to a sandbox.", 403)
            shown["host"] = "localhost"
        return self.gate.admit(shown, "admin", "user")


def sandbox_of(headers: Mapping[str, str]) -> tuple[str, int]:
    """Return the sandbox and the port that a request names. Raises `RockError`."""
    sandbox_id = headers.get(ID_HEADER)
    if sandbox_id is not None:
        return sandbox_id, port_of(headers.get(PORT_HEADER, str(ENVD_PORT)))
    found = HOST.fullmatch(headers.get("host", ""))
    assert found is not None, "`is_traffic` has seen it"
    return found[2], port_of(found[1])


def lost(record: Record, worker: Worker, error: Exception) -> Exception:
    """Return the error for a worker that does not answer."""
    if not record.live:
        why = record.reason or "it was stopped."
        return E2bError(502, f"The sandbox {record.id} {NOT_FOUND}: it is {record.state}: {why}")
    return E2bError(503, f"The worker {worker.name} does not answer ({error}).")
