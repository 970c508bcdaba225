"""ALE's own routes to what a sandbox can do beyond its contract: streamed output, shells and resets."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ale.errors import AleError, UncleanError
from ale.specs.sandbox import ExecResult
from ale.specs.sandbox_protocols import Resets, Shell, Shells, Streams, lacks
from ale_rock.http.disconnects import ClosingStream, while_connected
from ale_rock.http.streaming import FAULT, RESULT, STDERR, STDOUT, frame
from ale_rock.schemas import Fault, OpenShell, ResetSandbox, RockError
from ale_rock.worker.command_routes import exec_arguments, outcome_of
from ale_rock.worker.responses import EXPECTED, fault_of, json_response, read_body
from ale_rock.worker.service import Held, WorkerService
from ale_rock.worker.validation import check_env, check_user, readable

MOST_SHELLS = 256


class InsideRoutes:
    """The routes of one worker."""

    def __init__(self, service: WorkerService) -> None:
        self.service, self.settings = service, service.settings
        self.routes = [
            Route("/sandboxes/{id}/stream", self.stream, methods=["POST"]),
            Route("/sandboxes/{id}/shells", self.open_shell, methods=["POST"]),
            Route("/sandboxes/{id}/shells/{shell}", self.close_shell, methods=["DELETE"]),
            Route("/sandboxes/{id}/shells/{shell}/run", self.run_in_shell, methods=["POST"]),
            Route("/sandboxes/{id}/reset", self.reset, methods=["POST"]),
        ]

    def held(self, request: Request) -> Held:
        """Return the sandbox that a request names."""
        return self.service.find(request.path_params["id"])

    async def body(self, request: Request) -> bytes:
        """Return the body of a request."""
        return await read_body(request, self.settings.max_body_bytes)

    async def stream(self, request: Request) -> Response:
        """Run a command and send its output as frames, as it is written, then its result; it ends when the client hangs
        up, and waits for a client that reads slowly."""
        try:
            sandbox = self.held(request).sandbox
            if not isinstance(sandbox, Streams):
                raise lacks(sandbox, Streams)
            asked = exec_arguments(await self.body(request))
        except EXPECTED as error:
            return fault_of(error)
        return ClosingStream(output_frames(sandbox, asked), media_type="application/octet-stream")

    async def open_shell(self, request: Request) -> Response:
        """Open a shell; it lives until it is closed, or its sandbox ends or is reset."""
        try:
            held = self.held(request)
            if not isinstance(held.sandbox, Shells):
                raise lacks(held.sandbox, Shells)
            if len(held.shells) >= MOST_SHELLS:
                raise RockError(f"A sandbox has at most {MOST_SHELLS} shells at once; close some.")
            asked = OpenShell.model_validate_json(await self.body(request))
            env, user = check_env(asked.env or {}), check_user(asked.user)
            opening = held.sandbox.open_shell(cwd=asked.cwd, env=env, user=user)
            name = secrets.token_hex(8)
            held.shells[name] = await while_connected(request, opening)
        except EXPECTED as error:
            return fault_of(error)
        return json_response({"shell": name})

    def shell(self, request: Request) -> Shell:
        """Return the shell that a request names. Raises `RockError` if there is none, and `SandboxError`."""
        shell = self.held(request).shells.get(request.path_params["shell"])
        if shell is None:
            raise RockError("There is no such shell in this sandbox; open another one.")
        return shell

    async def run_in_shell(self, request: Request) -> Response:
        """Run a command in a shell; it ends when the client hangs up."""
        try:
            shell = self.shell(request)
            asked = exec_arguments(await self.body(request))
            limits = {name: asked[name] for name in ("timeout_s", "max_output_bytes")}
            done = await while_connected(request, shell.run(asked["command"], **limits))
        except EXPECTED as error:
            return fault_of(error)
        return json_response(outcome_of(done))

    async def close_shell(self, request: Request) -> Response:
        """End a shell and what it started. It is idempotent."""
        try:
            shell = self.held(request).shells.pop(request.path_params["shell"], None)
            if shell is not None:
                await shell.close()
        except EXPECTED as error:
            return fault_of(error)
        return json_response({})

    async def reset(self, request: Request) -> Response:
        """Make a sandbox as new, with another environment, other files and labels; what else its spec says stays."""
        try:
            held = self.held(request)
            box = held.sandbox
            if not isinstance(box, Resets):
                raise lacks(box, Resets)
            spec = ResetSandbox.model_validate_json(await self.body(request)).spec
            own = {name: getattr(box.spec, name) for name in ("id", "lifetime_s", "idle_s")}
            await while_connected(request, box.reset(spec.model_copy(update=own)))
            held.shells.clear()
            held.request = held.request.model_copy(update={"spec": spec})
        except UncleanError as error:
            return json_response({"detail": readable(str(error)), "fault": "service", "unclean": error.what}, 503)
        except EXPECTED as error:
            return fault_of(error)
        return json_response({})


async def output_frames(sandbox: Streams, asked: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a command's output and of its result, or of what went wrong."""
    how = {name: value for name, value in asked.items() if name not in ("command", "max_output_bytes")}
    try:
        async with aclosing(sandbox.exec_stream(asked["command"], **how)) as items:
            async for item in items:
                if isinstance(item, ExecResult):
                    yield frame(RESULT, to_json(outcome_of(item)))
                else:
                    yield frame(STDOUT if item.stream == "stdout" else STDERR, item.data)
    except (AleError, OSError) as error:
        yield frame(FAULT, to_json(Fault(detail=readable(str(error)))))
