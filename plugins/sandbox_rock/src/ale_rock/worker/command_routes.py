"""The worker's routes for ALE's own provider: commands, files, logs and statistics of a sandbox.

They carry what ROCK's API lacks: users, standard input, the two output streams apart, files of bytes.
"""

from __future__ import annotations

import binascii
import json
import math
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ale.errors import SandboxError
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxProvider
from ale.specs.sandbox_protocols import KeepsSnapshots, Logs, Measures, Resets, Shells, Snapshots, Streams
from ale_rock.http.disconnects import while_connected
from ale_rock.schemas import RockError
from ale_rock.worker.responses import EXPECTED, fault_of, json_response, query, read_body, whole_number
from ale_rock.worker.service import WorkerService
from ale_rock.worker.session import MOST_S
from ale_rock.worker.spool import Spool
from ale_rock.worker.validation import check_path, check_user, readable
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

PIECE_BYTES = 4 << 20
MOST_OUTPUT_BYTES = 1 << 25
MOST_FILE_BYTES = 1 << 40


class CommandRoutes:
    """The routes of one worker."""

    def __init__(self, service: WorkerService) -> None:
        self.service, self.settings = service, service.settings
        self.routes = [
            Route("/sandboxes/{id}/exec", self.exec, methods=["POST"]),
            Route("/sandboxes/{id}/files", self.put_file, methods=["PUT"]),
            Route("/sandboxes/{id}/files", self.get_file, methods=["GET"]),
            Route("/sandboxes/{id}/logs", self.logs, methods=["GET"]),
            Route("/sandboxes/{id}/stats", self.stats, methods=["GET"]),
            Route("/sandboxes/{id}/kill_agent_processes", self.kill_agent_processes, methods=["POST"]),
        ]

    def sandbox(self, request: Request) -> Sandbox:
        """Return the sandbox that a request names."""
        return self.service.find(request.path_params["id"]).sandbox

    async def exec(self, request: Request) -> Response:
        """Run a command; it ends when the client hangs up."""
        try:
            sandbox = self.sandbox(request)
            asked = exec_arguments(await read_body(request, self.settings.max_body_bytes))
            done = await while_connected(request, sandbox.exec(**asked))
        except EXPECTED as error:
            return fault_of(error)
        return json_response(outcome_of(done))

    async def put_file(self, request: Request) -> Response:
        """Write a file; the body is its content. `mode` is a decimal number."""
        try:
            held = self.service.find(request.path_params["id"])
            asked = query(request)
            path, user = check_path(asked.get("path", "")), check_user(asked.get("user", AGENT))
            mode = whole_number(asked.get("mode", str(0o644)), "mode", 0o7777)
            with Spool(self.settings.spool_folder, self.settings.max_file_bytes) as spool:
                async for piece in request.stream():
                    spool.add(piece)
                    await spool.settle()
                await held.rocklet.put_file(spool, path, user, mode)
        except EXPECTED as error:
            return fault_of(error)
        return json_response({})

    async def get_file(self, request: Request) -> Response:
        """Read a file; a large one goes out in pieces."""
        try:
            held = self.service.find(request.path_params["id"])
            asked = query(request)
            path = check_path(asked.get("path", ""))
            most = whole_number(asked.get("max_bytes", str(1 << 28)), "max_bytes", MOST_FILE_BYTES)
        except EXPECTED as error:
            return fault_of(error)
        try:
            content = await read_file(held.sandbox, path, most)
        except FileNotFoundError:
            return json_response({"detail": f"There is no file {readable(path)}.", "kind": "missing"}, 404)
        except IsADirectoryError:
            return json_response({"detail": f"{readable(path)} is a folder, not a file.", "kind": "folder"}, 409)
        except (SandboxError, ValueError, OSError) as error:
            reason = held.rocklet.blame(error)
            if isinstance(reason, SandboxError):
                return fault_of(reason)
            return json_response({"detail": readable(str(reason)), "kind": "other"}, 409)
        kind = "application/octet-stream"
        if isinstance(content, bytes):
            return Response(content, media_type=kind)
        return StreamingResponse(content, media_type=kind)

    async def logs(self, request: Request) -> Response:
        """Return a sandbox's log, also for a while after its end; with `follow=true` the lines come as they are made,
        until the sandbox has ended."""
        logs, sandbox_id = self.service.logs, request.path_params["id"]
        kind = "text/plain; charset=utf-8"
        if request.query_params.get("follow") == "true":
            return StreamingResponse(logs.follow(sandbox_id), media_type=kind)
        return Response(await logs.text(sandbox_id), media_type=kind)

    async def stats(self, request: Request) -> Response:
        """Return what a sandbox uses now."""
        try:
            held = self.service.find(request.path_params["id"])
            used = await held.usage.now()
        except EXPECTED as error:
            return fault_of(error)
        return json_response(used)

    async def kill_agent_processes(self, request: Request) -> Response:
        """End what the agent left running."""
        try:
            await self.sandbox(request).kill_agent_processes()
        except EXPECTED as error:
            return fault_of(error)
        return json_response({})


def protocols_of(provider: SandboxProvider) -> list[str]:
    """Return the protocols of sandboxes that these routes serve, as far as the provider has them."""
    boxes = provider.sandbox_type
    has = {protocol.__name__: issubclass(boxes, protocol) for protocol in (Streams, Shells, Resets, Measures, Logs)}
    has["Trees"] = issubclass(boxes, ResidentSandbox)
    has["Snapshots"] = issubclass(boxes, Snapshots) and isinstance(provider, KeepsSnapshots)
    return [name for name, there in has.items() if there]


def outcome_of(done: ExecResult) -> dict[str, Any]:
    """Return a result as these routes answer with it."""
    return {
        "exit_code": done.exit_code,
        "stdout": b64encode(done.stdout).decode(),
        "stderr": b64encode(done.stderr).decode(),
        "duration_s": done.duration_s,
        "timed_out": done.timed_out,
        "truncated": done.truncated,
    }


def exec_arguments(body: bytes) -> dict[str, Any]:
    """Return the arguments of `Sandbox.exec`. They are not read by a pydantic model, because the texts of a policy may
    hold half a character, which a sandbox takes and pydantic refuses. Raises `RockError`."""
    try:
        asked = json.loads(body)
        stdin = b64decode(asked.get("stdin") or "", validate=True)
        command, cwd, env = asked["command"], asked.get("cwd"), asked.get("env") or {}
        timeout_s, most = float(asked.get("timeout_s", 60.0)), int(asked.get("max_output_bytes", 1 << 20))
        texts = [command, *env, *env.values(), *([] if cwd is None else [cwd])]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("command, cwd and env are texts")
        if not (timeout_s > 0 and math.isfinite(timeout_s)) or most < 0:
            raise ValueError("timeout_s must be above 0 and finite, max_output_bytes not below 0")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error) as error:
        raise RockError(f"The request is no command: {type(error).__name__}: {str(error)[:300]}.") from None
    return {
        "command": command,
        "timeout_s": min(timeout_s, MOST_S),
        "cwd": cwd,
        "env": env,
        "stdin": stdin,
        "user": check_user(str(asked.get("user", AGENT))),
        "max_output_bytes": min(most, MOST_OUTPUT_BYTES),
    }


async def read_file(sandbox: Sandbox, path: str, max_bytes: int) -> bytes | AsyncIterator[bytes]:
    """Read a file: whole if it is small or the sandbox cannot hand it out in pieces. Raises as `Sandbox.download`."""
    if not isinstance(sandbox, ResidentSandbox):
        return await sandbox.download(path, max_bytes=max_bytes)
    first = await sandbox.read(path, min(max_bytes + 1, PIECE_BYTES), 0)
    if len(first) > max_bytes:
        raise ValueError(f"{path} is larger than {max_bytes} bytes")
    if len(first) < PIECE_BYTES:
        return first
    beyond = await sandbox.read(path, 1, max_bytes)
    if beyond:
        raise ValueError(f"{path} is larger than {max_bytes} bytes")
    return pieces(sandbox, path, first, max_bytes)


async def pieces(sandbox: ResidentSandbox, path: str, first: bytes, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield a file from its first piece on. Raises `ValueError`, which breaks the answer off, if it grows beyond
    `max_bytes` meanwhile."""
    piece, at = first, 0
    while piece:
        yield piece
        at += len(piece)
        piece = await sandbox.read(path, PIECE_BYTES, at)
        if at + len(piece) > max_bytes:
            raise ValueError(f"{path} grew beyond {max_bytes} bytes while it was read")
