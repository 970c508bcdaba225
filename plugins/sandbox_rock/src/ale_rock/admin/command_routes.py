"""Routes for commands and files in sandboxes. They find the sandbox's worker, which does the work.

ROCK's actions come back as finished envelopes. The routes of ALE's own provider, under `/apis/ale/v1`, have no
envelope. Only the sandbox's id is read of a body here; the worker checks the rest.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from ale_rock.admin.auth import Gate
from ale_rock.admin.responses import answer, caller_of, envelope_of, plain_route, rock_route
from ale_rock.admin.sandbox_lookup import find, find_running
from ale_rock.admin.sandbox_routes import select
from ale_rock.admin.service import Service
from ale_rock.admin.upload_form import sandbox_of_form
from ale_rock.admin.worker_forwarding import ask, stream
from ale_rock.admin.workers import read_fault
from ale_rock.http.disconnects import PATIENCE_S, PatientAnswer, while_connected
from ale_rock.schemas import (
    ALE_BASE,
    BAD_REQUEST,
    JOB_EXIT_CODES,
    ROCK_BASE,
    SERVICE_ERROR,
    CloseSessionRequest,
    CreateSessionRequest,
    ExecCommand,
    ExecuteRequest,
    ReadFileRequest,
    RockError,
    RunInSessionRequest,
    SandboxRef,
    WriteFileRequest,
    failed,
)

JSON = {"Content-Type": "application/json"}
ACTIONS: dict[str, type[BaseModel]] = {
    "run_in_session": RunInSessionRequest,
    "execute": ExecuteRequest,
    "create_session": CreateSessionRequest,
    "close_session": CloseSessionRequest,
    "read_file": ReadFileRequest,
    "write_file": WriteFileRequest,
}


class TimedRef(SandboxRef):
    """The fields of an action that the admin reads: its sandbox, and how long it may take (by default as the action
    with the longest default)."""

    timeout: float | None = 1200


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that the worker reads."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


def make_action_router(service: Service, gate: Gate) -> APIRouter:
    """Make ROCK's routes."""
    router = APIRouter(prefix=ROCK_BASE, route_class=rock_route(gate), tags=["Inside a sandbox"])

    def job_headers(request: Request) -> dict[str, str]:
        wanted = request.headers.get(JOB_EXIT_CODES, "true" if service.settings.job_exit_codes else "")
        return {JOB_EXIT_CODES: "true" if wanted.lower() == "true" else "false"} if wanted else {}

    def add(action: str, model: type[BaseModel]) -> None:
        async def act(request: Request) -> Response:
            body = await request.body()
            asked = TimedRef.model_validate_json(body)
            record, worker = await find_running(service, asked.sandbox_id, caller_of(request))
            headers = JSON | job_headers(request)

            async def work() -> Response:
                try:
                    return envelope(*await ask(record, worker, "POST", action, body, headers), worker.name)
                except Exception as error:
                    return answer(envelope_of(error))

            return PatientAnswer(work(), asked.timeout or PATIENCE_S)

        router.add_api_route(
            f"/{action}", act, methods=["POST"], name=action, description=model.__doc__, openapi_extra=documented(model)
        )

    for action, model in ACTIONS.items():
        add(action, model)

    @router.post("/upload")
    async def upload(request: Request) -> Response:
        """Write a file into a sandbox: a form with `sandbox_id`, `target_path` and `file`, of any size."""
        kind = request.headers.get("content-type", "")
        sandbox_id, body = await sandbox_of_form(kind, request.stream())
        record, worker = await find_running(service, sandbox_id, caller_of(request))
        length = request.headers.get("content-length")
        headers = {"Content-Type": kind} | ({"Content-Length": length} if length else {})
        return envelope(*await ask(record, worker, "POST", "upload", body, headers), worker.name)

    return router


def envelope(status: int, data: bytes, name: str) -> Response:
    """Return a worker's envelope as it is. Any other answer of a worker becomes an envelope of an error."""
    if status == 200:
        return Response(data, media_type="application/json")
    fault = read_fault(data, status, name)
    return answer(failed(BAD_REQUEST if fault.fault == "caller" else SERVICE_ERROR, fault.detail))


def make_ale_router(service: Service, gate: Gate) -> APIRouter:
    """Make the routes of ALE's own provider."""
    router = APIRouter(prefix=f"{ALE_BASE}/sandboxes", route_class=plain_route(gate, "admin", "user"), tags=["ALE"])

    @router.get("")
    async def list_sandboxes(request: Request) -> Response:
        """List the live sandboxes with their labels."""
        found = select(service, caller_of(request), {})
        sandboxes = [
            {
                "id": each.id,
                "labels": each.labels,
                "created_at": each.created,
                "alive": each.alive,
                "state": each.state,
                "worker": each.worker,
                "user": each.user,
                "image": each.image,
            }
            for each in found
        ]
        return answer({"sandboxes": sandboxes})

    @router.delete("/{sandbox_id}")
    async def remove(request: Request, sandbox_id: str) -> Response:
        """Stop a sandbox. It is idempotent."""
        await service.stop(await find(service, sandbox_id, caller_of(request), ended_too=True))
        return answer({})

    @router.post("/{sandbox_id}/exec", openapi_extra=documented(ExecCommand))
    async def exec_command(request: Request, sandbox_id: str) -> Response:
        """Run a command: `Sandbox.exec`."""
        return await pass_on(service, request, sandbox_id, "exec")

    @router.post("/{sandbox_id}/kill_agent_processes")
    async def kill_agent_processes(request: Request, sandbox_id: str) -> Response:
        """End what the agent left running."""
        return await pass_on(service, request, sandbox_id, "kill_agent_processes")

    @router.put("/{sandbox_id}/files")
    async def put_file(request: Request, sandbox_id: str) -> Response:
        """Write a file; the body is its content."""
        record, worker = await find_running(service, sandbox_id, caller_of(request))
        length = request.headers.get("content-length")
        headers = {"Content-Type": "application/octet-stream"} | ({"Content-Length": length} if length else {})
        status, data = await ask(record, worker, "PUT", "files", request.stream(), headers, query_of(request))
        return Response(data, status, media_type="application/json")

    @router.get("/{sandbox_id}/files")
    async def get_file(request: Request, sandbox_id: str) -> Response:
        """Read a file."""
        record, worker = await find_running(service, sandbox_id, caller_of(request))
        return await while_connected(request, stream(record, worker, "files", query_of(request)))

    return router


def query_of(request: Request) -> str:
    """Return the query as it was sent, because a path in a sandbox may have bytes that are not UTF-8. Raises
    `RockError`."""
    query: bytes = request.scope["query_string"]
    if not re.fullmatch(rb"[!-~]*", query) or b"#" in query:
        raise RockError("The query of the request holds what no URL may hold.")
    return query.decode("ascii")


async def pass_on(service: Service, request: Request, sandbox_id: str, path: str) -> Response:
    """Pass a request on to the worker of a sandbox that runs, and return the answer; the body is JSON."""
    body = await request.body()
    record, worker = await find_running(service, sandbox_id, caller_of(request))
    status, data = await while_connected(request, ask(record, worker, request.method, path, body, JSON))
    return Response(data, status, media_type="application/json")
