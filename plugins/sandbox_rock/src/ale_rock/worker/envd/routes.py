"""The worker's routes that answer as E2B's `envd` does, under `/sandboxes/{id}/envd`.

The admin passes requests on as they are, so `Authorization`, in which E2B names a user, comes as `CREDENTIALS`. All of
a sandbox's users are its own one. Errors have E2B's shape: `{"code", "message"}`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import Sandbox
from ale_rock.http.disconnects import ClosingStream, while_connected
from ale_rock.http.proxy import CREDENTIALS
from ale_rock.schemas import RockError
from ale_rock.worker.command_routes import MOST_FILE_BYTES, read_file
from ale_rock.worker.envd import folders
from ale_rock.worker.envd.connect import (
    STREAM,
    ConnectError,
    failed_stream,
    last_frame,
    message_frame,
    read_messages,
    read_one,
    read_unary,
    unary,
)
from ale_rock.worker.envd.processes import Order, Process, Processes
from ale_rock.worker.envd.uploads import write_files
from ale_rock.worker.responses import EXPECTED, json_response, query
from ale_rock.worker.service import Held, WorkerService
from ale_rock.worker.session import MOST_S
from ale_rock.worker.validation import check_env, readable

OWN_USERS = "", "user", "root", "agent"
"""Names that mean the sandbox's own user."""
MOST_ROWS = 10_000
Call = Callable[[Sandbox, dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]
Answer = Callable[[Request, Held], Coroutine[Any, Any, Response]]


class EnvdRoutes:
    """The routes of one worker."""

    def __init__(self, service: WorkerService) -> None:
        self.service, self.settings = service, service.settings
        self._processes: WeakKeyDictionary[Sandbox, Processes] = WeakKeyDictionary()
        self._calls: dict[str, Call] = {
            "process.Process/List": self.list_processes,
            "process.Process/SendInput": self.send_input,
            "process.Process/CloseStdin": self.close_input,
            "process.Process/SendSignal": self.send_signal,
            "process.Process/Update": self.resize,
            "filesystem.Filesystem/ListDir": self.list_folder,
            "filesystem.Filesystem/Stat": self.stat,
            "filesystem.Filesystem/MakeDir": self.make_folder,
            "filesystem.Filesystem/Move": self.move,
            "filesystem.Filesystem/Remove": self.remove,
        }
        self._streams = {"Start": self.start, "Connect": self.connect, "StreamInput": self.stream_input}
        base = "/sandboxes/{id}/envd"
        self.routes = [
            Route(f"{base}/health", self.in_sandbox(self.health), methods=["GET"]),
            Route(f"{base}/files", self.in_sandbox(self.get_file), methods=["GET"]),
            Route(f"{base}/files", self.in_sandbox(self.put_files), methods=["POST"]),
            Route(f"{base}/{{service}}/{{method}}", self.in_sandbox(self.call), methods=["POST"]),
        ]

    def processes(self, sandbox: Sandbox) -> Processes:
        """Return the processes of a sandbox."""
        return self._processes.setdefault(sandbox, Processes())

    def in_sandbox(self, answer: Answer) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request for the sandbox that its path names, or refuses it if there is none."""

        async def answer_for(request: Request) -> Response:
            try:
                held = self.service.find(request.path_params["id"])
            except EXPECTED as error:
                return refuse(error)
            return await answer(request, held)

        return answer_for

    # --- files

    async def health(self, request: Request, held: Held) -> Response:
        """Say that the sandbox runs."""
        return Response(status_code=204)

    async def get_file(self, request: Request, held: Held) -> Response:
        """Read a file."""
        path = ""
        try:
            asked = query(request)
            check_username(asked.get("username", ""))
            path = folders.absolute(held.sandbox, asked.get("path", ""))
            content = await read_file(held.sandbox, path, MOST_FILE_BYTES)
        except FileNotFoundError:
            return error_response(404, f"There is no file {readable(path)} in the sandbox.")
        except IsADirectoryError:
            return error_response(400, f"{readable(path)} is a folder, not a file.")
        except (ConnectError, *EXPECTED) as error:
            return refuse(blame(held, error))
        kind = "application/octet-stream"
        if isinstance(content, bytes):
            return Response(content, media_type=kind)
        return StreamingResponse(content, media_type=kind)

    async def put_files(self, request: Request, held: Held) -> Response:
        """Write files: the body is one, or a form with several."""
        try:
            asked = query(request)
            check_username(asked.get("username", ""))
            if any(name.lower().startswith("x-metadata-") for name in request.headers):
                raise RockError("This service keeps no metadata of files; leave it out.")
            written = await write_files(request, held.sandbox, asked.get("path", ""), self.settings)
        except (ConnectError, *EXPECTED) as error:
            with suppress(RuntimeError):  # a client that is still sending does not read the answer
                async for _ in request.stream():
                    pass
            return refuse(blame(held, error))
        return json_response(written)

    # --- calls of the Connect protocol

    async def call(self, request: Request, held: Held) -> Response:
        """Answer a call."""
        service, method = request.path_params["service"], request.path_params["method"]
        try:
            check_username(username_of(request))
            if service == "process.Process" and method in self._streams:
                return await self._streams[method](request, held.sandbox)
            asked = self._calls.get(f"{service}/{method}")
            if asked is None:
                raise ConnectError("unimplemented", unknown(service, method))
            message = await read_unary(request, self.settings.max_body_bytes)
            return unary(await while_connected(request, asked(held.sandbox, message)))
        except EXPECTED as error:
            failure = as_connect_error(blame(held, error))
        except ConnectError as error:
            failure = error
        if request.headers.get("content-type", "").startswith(STREAM):
            return StreamingResponse(failed_stream(failure), media_type=STREAM)
        return failure.response()

    async def start(self, request: Request, sandbox: Sandbox) -> Response:
        """Start a process and send its output."""
        limit_s = limit_of(request)
        order = order_of(await read_one(request, self.settings.max_body_bytes), limit_s)
        process = await self.processes(sandbox).start(sandbox, order)
        return await follow(request, process, None)

    async def connect(self, request: Request, sandbox: Sandbox) -> Response:
        """Send the further output of a process."""
        asked = await read_one(request, self.settings.max_body_bytes)
        return await follow(request, self.processes(sandbox).find(asked.get("process")), limit_of(request))

    async def stream_input(self, request: Request, sandbox: Sandbox) -> Response:
        """Write what comes to the standard input of a process."""
        processes, process = self.processes(sandbox), None
        async for message in read_messages(request, self.settings.max_body_bytes):
            event = part(message, "event") or message
            if "start" in event:
                process = processes.find(part(event, "start").get("process"))
            elif "data" in event:
                if process is None:
                    raise ConnectError("invalid_argument", "The first message of this call names the process.")
                await processes.send_input(sandbox, process, input_of(part(event, "data")))
        answer = message_frame({}) + last_frame()
        return Response(answer, media_type=STREAM)

    async def list_processes(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """List the processes that were started by these routes."""
        return {"processes": self.processes(sandbox).list()}

    async def send_input(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """Write to the standard input of a process."""
        processes = self.processes(sandbox)
        await processes.send_input(sandbox, processes.find(asked.get("process")), input_of(asked))
        return {}

    async def close_input(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """End the standard input of a process."""
        processes = self.processes(sandbox)
        await processes.close_input(sandbox, processes.find(asked.get("process")))
        return {}

    async def send_signal(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """Send a signal to a process."""
        processes = self.processes(sandbox)
        await processes.send_signal(sandbox, processes.find(asked.get("process")), asked.get("signal"))
        return {}

    async def resize(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """Change the size of a process's terminal."""
        processes = self.processes(sandbox)
        process = processes.find(asked.get("process"))
        size = size_of(asked)
        if size is not None:
            await processes.resize(sandbox, process, *size)
        return {}

    async def list_folder(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """List a folder."""
        depth = asked.get("depth", 1)
        if not isinstance(depth, int) or depth < 0:
            raise ConnectError("invalid_argument", "depth is a number from 1 on.")
        path = folders.absolute(sandbox, asked.get("path"))
        return {"entries": await folders.list_folder(sandbox, path, depth)}

    async def stat(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """Describe an entry."""
        return {"entry": await folders.stat(sandbox, folders.absolute(sandbox, asked.get("path")))}

    async def make_folder(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """Make a folder."""
        return {"entry": await folders.make_folder(sandbox, folders.absolute(sandbox, asked.get("path")))}

    async def move(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """Rename an entry."""
        source, target = (folders.absolute(sandbox, asked.get(name)) for name in ("source", "destination"))
        return {"entry": await folders.move(sandbox, source, target)}

    async def remove(self, sandbox: Sandbox, asked: dict[str, Any]) -> dict[str, Any]:
        """Remove an entry."""
        await folders.remove(sandbox, folders.absolute(sandbox, asked.get("path")))
        return {}


async def follow(request: Request, process: Process, limit_s: float | None) -> Response:
    """Return the answer that follows a process."""
    every = request.headers.get("keepalive-ping-interval", "")
    keepalive_s = float(every) if every.isascii() and every.isdigit() and 0 < int(every) < 1e6 else None
    frames = process.follow(keepalive_s, limit_s)
    await anext(frames)
    return ClosingStream(frames, media_type=STREAM)


# --- reading requests


def part(message: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the message in a field; an empty one if there is none. Raises `ConnectError`."""
    value = message.get(name) or {}
    if not isinstance(value, dict):
        raise ConnectError("invalid_argument", f"{name} is no JSON object.")
    return value


def order_of(asked: dict[str, Any], limit_s: float | None) -> Order:
    """Return what a `process.StartRequest` asks for. Raises `ConnectError`."""
    config = part(asked, "process")
    args, envs = config.get("args") or [], part(config, "envs")
    words: list[Any] = [config.get("cmd") or None, *args] if isinstance(args, list) else [None]
    cwd, tag = config.get("cwd") or "", asked.get("tag")
    texts = [*words, *envs, *envs.values(), cwd, tag or ""]
    if not all(isinstance(text, str) for text in texts):
        raise ConnectError("invalid_argument", "cmd is not empty, and cmd, args, envs, cwd and tag are texts.")
    if any("\0" in text for text in (*words, cwd)):
        raise ConnectError("invalid_argument", "A command, its arguments and its folder hold no NUL byte.")
    try:
        check_env(envs)
    except RockError as error:
        raise ConnectError("invalid_argument", error.sentence) from None
    return Order(
        words=words,
        env=envs,
        cwd=cwd or None,
        timeout_s=min(limit_s or MOST_S, MOST_S),
        has_input=asked.get("stdin", True) is not False,
        size=size_of(asked),
        tag=tag,
    )


def size_of(asked: dict[str, Any]) -> tuple[int, int] | None:
    """Return rows and columns of a terminal; None if a request names none. Raises `ConnectError`."""
    if asked.get("pty") is None:
        return None
    size = part(part(asked, "pty"), "size")
    rows, columns = size.get("rows", 24), size.get("cols", 80)
    if not all(isinstance(each, int) and 0 < each <= MOST_ROWS for each in (rows, columns)):
        raise ConnectError("invalid_argument", f"rows and cols are numbers from 1 to {MOST_ROWS}.")
    return rows, columns


def input_of(asked: dict[str, Any]) -> bytes:
    """Return the bytes of a `process.ProcessInput`. Raises `ConnectError`."""
    given = part(asked, "input")
    text = given.get("stdin") or given.get("pty") or ""
    try:
        return b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise ConnectError("invalid_argument", "The input is no text in base64.") from None


def limit_of(request: Request) -> float | None:
    """Return how long a call may take; None: as long as it does. Raises `ConnectError`."""
    text = request.headers.get("connect-timeout-ms")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) > 0):
        raise ConnectError("invalid_argument", f"Connect-Timeout-Ms is a number above 0, not {text[:100]!r}.")
    return int(text) / 1000


def username_of(request: Request) -> str:
    """Return the user that a call names; "" if it names none. Raises `ConnectError`."""
    scheme, _, value = request.headers.get(CREDENTIALS, "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        raise ConnectError("invalid_argument", "Authorization names no user.") from None


def check_username(name: str) -> None:
    """Refuse users that a sandbox does not have. Raises `ConnectError`."""
    if name not in OWN_USERS:
        raise ConnectError(
            "invalid_argument", f"Everything runs as the sandbox's own user, and not as {name[:100]!r}; leave user out."
        )


# --- errors


def unknown(service: str, method: str) -> str:
    """Say that there is no such call."""
    if "Watch" in method:
        return "This service watches no folders; list them by files.list when you need to know."
    return f"This service has no call {service[:100]}/{method[:100]} of E2B's envd."


def blame(held: Held, error: Exception) -> Exception:
    """Return the error for a request that failed in a sandbox: the caller's fault if the sandbox is alive."""
    if isinstance(error, (SandboxError, OSError, ValueError)):
        return held.rocklet.blame(error)
    return error


def as_connect_error(error: Exception) -> ConnectError:
    """Return an error as the Connect protocol has it."""
    if isinstance(error, RockError | ConfigError):
        return ConnectError("failed_precondition", str(error))
    return ConnectError("unavailable", gone(error))


def refuse(error: Exception) -> Response:
    """Return the plain answer that stands for an error."""
    if isinstance(error, ConnectError):
        return error_response({"not_found": 404}.get(error.code, 400), error.sentence)
    if isinstance(error, RockError | ConfigError):
        return error_response(400, str(error))
    return error_response(502, gone(error))


def gone(error: Exception) -> str:
    """Say that a sandbox has ended, with the words by which E2B's SDK knows that."""
    return f"The sandbox was not found: {error}" if isinstance(error, SandboxError) else str(error)


def error_response(status: int, sentence: str) -> Response:
    """Return an error in E2B's shape."""
    return json_response({"code": status, "message": readable(sentence)}, status)
