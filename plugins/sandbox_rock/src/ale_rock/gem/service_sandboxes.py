"""The service's own sandboxes, as the environments of GEM use them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

from ale.errors import ConfigError, SandboxError
from ale.specs.reward import GradedSandbox
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxSpec
from ale_rock.admin.auth import Caller
from ale_rock.admin.responses import SandboxNotFound
from ale_rock.admin.sandbox_lookup import find, find_running
from ale_rock.admin.service import Service
from ale_rock.admin.worker_forwarding import ask
from ale_rock.admin.workers import read_fault
from ale_rock.schemas import BAD_REQUEST, RockError, StartRequest
from ale_rock.schemas.exec import command_body, result_of

JSON = {"Content-Type": "application/json"}


class ServiceSandboxes:
    """Starts sandboxes and opens them for a caller, which finds only the sandboxes that it may see."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def start(self, spec: SandboxSpec, caller: Caller) -> str:
        """Start a sandbox and return its id once commands can run in it. Raises `ConfigError` or `SandboxError`."""
        async with _as_errors():
            record = await self._service.start(StartRequest(spec=spec), caller)
            if not record.alive:
                await self._service.stop(record)
                raise SandboxError(f"The sandbox {record.id} still waited in the queue; try again later.")
            return record.id

    async def labels(self, sandbox_id: str, caller: Caller) -> Mapping[str, str]:
        """Return its labels. Raises `SandboxError` if there is none of this id."""
        async with _as_errors(missing=SandboxError):
            return (await find(self._service, sandbox_id, caller)).labels

    def open(self, sandbox_id: str, caller: Caller, spec: SandboxSpec | None = None) -> GradedSandbox:
        """Return a running sandbox; with the spec that it was started with, another one can be opened beside it."""
        return ServiceSandbox(self, self._service, sandbox_id, caller, spec or SandboxSpec(id=sandbox_id))

    async def remove(self, sandbox_id: str, caller: Caller) -> None:
        """Remove it. It is idempotent."""
        async with _as_errors(missing=SandboxError):
            await self._service.stop(await find(self._service, sandbox_id, caller, ended_too=True))


class ServiceSandbox(GradedSandbox):
    """A sandbox of the service, by the routes of its worker."""

    def __init__(
        self, sandboxes: ServiceSandboxes, service: Service, sandbox_id: str, caller: Caller, spec: SandboxSpec
    ) -> None:
        self.id, self.spec = sandbox_id, spec
        self._sandboxes, self._service, self._caller = sandboxes, service, caller

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float = 60.0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str = AGENT,
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        asked = command_body(command, timeout_s, cwd, env, stdin, user) | {"max_output_bytes": max_output_bytes}
        return result_of(json.loads(await self._ask("POST", "exec", json.dumps(asked).encode(), JSON)))

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        for path, data in files.items():
            query = {"path": path, "user": user, "mode": str(mode)}
            await self._ask("PUT", "files", data, {"Content-Type": "application/octet-stream"}, query)

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        return await self._ask("GET", "files", None, {}, {"path": path, "max_bytes": str(max_bytes)})

    async def kill_agent_processes(self) -> None:
        await self._ask("POST", "kill_agent_processes", b"{}", JSON)

    async def stop(self) -> None:
        await self._sandboxes.remove(self.id, self._caller)

    @asynccontextmanager
    async def open_another(self) -> AsyncIterator[Sandbox]:
        spec = self.spec.model_copy(update={"id": None})
        sandbox_id = await self._sandboxes.start(spec, self._caller)
        async with self._sandboxes.open(sandbox_id, self._caller, spec) as another:
            yield another

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        """Ask its worker. Raises `SandboxError`, and as `Sandbox.download` for a file that cannot be read."""
        async with _as_errors(missing=SandboxError):
            record, worker = await find_running(self._service, self.id, self._caller)
            asked = urlencode(query or {}, errors="surrogateescape")
            status, data = await ask(record, worker, method, path, body, headers, asked)
        if status == 200:
            return data
        sentence = read_fault(data, status, worker.name).detail
        kind = json.loads(data).get("kind") if data[:1] == b"{" else None
        if kind is not None:
            raise {"missing": FileNotFoundError, "folder": IsADirectoryError}.get(kind, ValueError)(sentence)
        raise SandboxError(sentence)


@asynccontextmanager
async def _as_errors(missing: type[ConfigError | SandboxError] = ConfigError) -> AsyncIterator[None]:
    """Turn a `RockError` into an error of ALE: the caller's fault into `missing`, the service's into `SandboxError`."""
    try:
        yield
    except SandboxNotFound:  # the route answers with 404: no sandbox has failed
        raise
    except RockError as error:
        raise (missing if error.code == BAD_REQUEST else SandboxError)(error.sentence) from None
