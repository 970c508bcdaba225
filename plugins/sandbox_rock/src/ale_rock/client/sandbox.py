"""A sandbox of a ROCK service, as ALE's runs use it, by ALE's own routes, which the admin passes on to the worker.

ROCK's API lacks parts of the contract (standard input, the two output streams apart, users, raw files), so these routes
lie beside it. Both reach the same sandboxes. `protocols` has what a sandbox can do beyond the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxSpec
from ale_rock.client.service_client import ALE, ANSWER_S, Missing, ServiceClient
from ale_rock.client.snapshots import ServiceSnapshots
from ale_rock.schemas.exec import command_body, result_of
from ale_sandbox.host.commands import as_bytes

UPLOADS_AT_ONCE = 4
LAST_REFUSALS_S = 2.0
"""How long `stop` waits for connections that were refused just before the sandbox's end."""
T = TypeVar("T")


class Owner(Protocol):
    """The provider of a sandbox, as the sandbox uses it."""

    client: ServiceClient
    own_snapshots: ServiceSnapshots

    async def remove_own(self, sandbox_id: str) -> None:
        """Remove a sandbox of this provider."""

    def sent_spec(self, spec: SandboxSpec, sandbox_id: str) -> dict[str, Any]:
        """Return the spec that the service gets, as JSON."""


class RockSandbox(Sandbox):
    """A sandbox of the service."""

    def __init__(self, spec: SandboxSpec, sandbox_id: str, owner: Owner) -> None:
        self.id, self.spec, self.owner = sandbox_id, spec, owner
        self.client = owner.client
        self.path = f"{ALE}/sandboxes/{quote(as_bytes(sandbox_id), safe='')}"
        self.stopping: asyncio.Future[None] | None = None
        self.following: asyncio.Task[None] | None = None
        """Reports what its network policy refuses, if it has one (`refused_connections`)."""
        self.ended = asyncio.Event()
        """Set once the service has ended it, or has failed to."""
        self.shells: set[str] = set()
        """The routes of the shells that are open."""
        self._calls: set[asyncio.Task[object]] = set()

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
        done = await self.call(self.client.json("POST", f"{self.path}/exec", asked, timeout_s + ANSWER_S))
        return result_of(done)

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        places = asyncio.Semaphore(UPLOADS_AT_ONCE)

        async def put(path: str, data: bytes) -> None:
            query = {"path": path, "user": user, "mode": str(mode)}
            async with places, self.client.request("PUT", f"{self.path}/files", data, query=query) as response:
                await response.read()

        async def put_all() -> None:
            # The first fault ends the other uploads before it is raised.
            waiting = [asyncio.ensure_future(put(path, data)) for path, data in files.items()]
            try:
                await asyncio.gather(*waiting)
            finally:
                for each in waiting:
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

        await self.call(put_all())

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        async def get() -> bytes:
            query = {"path": path, "max_bytes": str(max_bytes)}
            async with self.client.request("GET", f"{self.path}/files", query=query) as response:
                return await response.read()

        try:
            return await self.call(get())
        except Missing as error:
            if error.what == "missing":
                raise FileNotFoundError(str(error)) from None
            if error.what == "folder":
                raise IsADirectoryError(str(error)) from None
            raise

    async def kill_agent_processes(self) -> None:
        await self.call(self.client.json("POST", f"{self.path}/kill_agent_processes", {}))

    async def stop(self) -> None:
        if self.stopping is None:
            self.stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self.stopping)

    async def _stop(self) -> None:
        for each in self._calls:
            each.cancel()
        try:
            await self.end()
        finally:
            self.ended.set()
            if self.following is not None:
                try:
                    await asyncio.wait([self.following], timeout=LAST_REFUSALS_S)
                finally:
                    self.following.cancel()

    async def end(self) -> None:
        """End it at the service, once no call is under way."""
        await self.owner.remove_own(self.id)

    async def call(self, work: Awaitable[T]) -> T:
        """Await one request, unless the sandbox is stopped; `stop` cancels it. A request that the caller cancels is
        cancelled at the service, too, because its connection closes. Raises `SandboxError`."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        if self.stopping is not None:
            task.cancel()
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.stopping is None or not task.cancelled() or _is_cancelled():
                raise
            raise SandboxError(f"The sandbox {self.id} is stopped.") from None
        except ConfigError as error:  # the sandbox runs, so it is no longer the configuration's fault
            raise SandboxError(str(error)) from None
        finally:
            task.cancel()
            self._calls.discard(task)


def _is_cancelled() -> bool:
    """Whether the calling task itself was cancelled, and not only the request that it awaits."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
