"""A worker as the admin sees it: what it offers, what is taken, and the requests to it.

Each worker has its own connections. When the worker is lost they are closed, which ends every request that waits for it
at once, so that no caller waits for a machine that is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar
from urllib.parse import quote
from uuid import uuid4

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

from ale_rock.admin.record import Need
from ale_rock.admin.settings import Settings
from ale_rock.admin.worker_connections import CONNECT_S, Connections
from ale_rock.schemas import (
    WORKER_ID,
    CreateSandbox,
    Fault,
    HeldSandboxes,
    HeldSnapshots,
    ImageBuilt,
    ImagePrepared,
    PrepareImage,
    Register,
    Removed,
    SandboxCreated,
    SnapshotTaken,
    TakeSnapshot,
    Usage,
)

CALL_S = 30.0
PULL_S = 3600.0
BUILDS_IN_TURN = 2
"""A worker builds an image for one caller after the other, so a build may have to wait for one that is given up."""
MIB = 1 << 20
AGAIN = 1.1
"""A disk that was full counts as full until this many times the least is free, so that it does not change at every
heartbeat."""
SNAPSHOT_S = 240.0
"""A snapshot of a large sandbox takes long; ROCK's client waits 300 s for an answer."""
Body = bytes | AsyncIterator[bytes] | None
Answer = TypeVar("Answer", bound=BaseModel)


class WorkerFailed(Exception):
    """The worker could not do it, or did not answer."""


class WorkerRefused(WorkerFailed):
    """The worker says that the request is the caller's fault."""


class Worker:
    """One registered worker."""

    def __init__(self, register: Register, settings: Settings) -> None:
        self.id = uuid4().hex
        self.name, self.url, self.provider = register.name, register.url.rstrip("/"), register.provider
        self.capabilities = None if register.capabilities is None else frozenset(register.capabilities)
        self.abilities = None if self.capabilities is None else self.capabilities | set(register.protocols)
        self.images = set(register.images)
        self.offered = register
        self.room = Need(
            register.cpus * settings.cpu_overcommit,
            int(register.memory_bytes * settings.memory_overcommit),
            int(register.disk_bytes * settings.disk_overcommit),
            register.gpus,
        )
        self.cpus, self.memory, self.disk, self.gpus = 0.0, 0, 0, 0
        """How much of the room is taken."""
        self.sandboxes: dict[str, Need] = {}
        """Sandboxes that may exist there, with the room that each takes."""
        self.starting = 0
        self.start_limit = settings.starts_per_worker
        self.memory_limit = int(register.memory_bytes * settings.memory_full)
        self.memory_used = 0
        self.disk_least = settings.disk_free_bytes
        self.disk_free: int | None = None
        """None until it has reported it."""
        self.disk_is_full = False
        self.cpu_load = 0.0
        self.new_snapshots: dict[str, float] = {}
        """When it made its latest snapshots: a list of images that it sent before may not name them yet."""
        self.warm = 0
        """How many sandboxes it keeps ready; they take no room from others."""
        self.host_ip = URL(self.url).host or ""
        if not self.host_ip:
            raise ValueError(f"{self.url} names no host")
        self.host_ip.encode("idna")  # raises `ValueError` for an invalid name, such as `..`
        self.seen = time.monotonic()
        self.reconciled = self.seen
        self.lost = False
        self.strays: set[str] = set()
        """Its snapshots that belonged to no sandbox or image when it was last asked."""
        self.unremoved: set[str] = set()
        """Sandboxes whose removal failed; it is tried again at the worker's next heartbeat."""
        self._headers = {"Authorization": f"Bearer {register.token}"} if register.token else {}
        self._connections = Connections(URL(self.url, encoded=True))
        self._session: aiohttp.ClientSession | None = None
        self._open: set[aiohttp.ClientResponse] = set()
        """Answers that are being read."""

    # --- room

    def fits(self, need: Need) -> bool:
        """Whether it has room for this now, and may start one more."""
        return (
            self.offers(need)
            and self.starting < self.start_limit
            and self.memory_used < self.memory_limit
            and not self.disk_is_full
            and self.cpus + need.cpus <= self.room.cpus + 1e-9
            and self.memory + need.memory_bytes <= self.room.memory_bytes
            and self.disk + need.disk_bytes <= self.room.disk_bytes
            and self.gpus + need.gpus <= self.room.gpus
        )

    def offers(self, need: Need) -> bool:
        """Whether it has the abilities that a sandbox needs."""
        return self.abilities is None or need.abilities <= self.abilities

    def could_fit(self, need: Need) -> bool:
        """Whether it has room for this when nothing else runs there."""
        room = self.room
        return (
            self.offers(need)
            and need.cpus <= room.cpus
            and need.memory_bytes <= room.memory_bytes
            and need.disk_bytes <= room.disk_bytes
            and need.gpus <= room.gpus
        )

    def load(self) -> float:
        """Return the share that is taken of the scarcest resource, with sandboxes that start."""
        room = self.room
        return max(self.cpus / room.cpus, self.memory / room.memory_bytes, self.disk / room.disk_bytes)

    def note_disk(self, free_bytes: int) -> str | None:
        """Set how much of its disk is free. Returns a sentence if that has just become too little, or enough again."""
        self.disk_free, was_full = free_bytes, self.disk_is_full
        self.disk_is_full = free_bytes < self.disk_least * (AGAIN if was_full else 1)
        if self.disk_is_full == was_full:
            return None
        least = f"{self.disk_least / MIB:.6g} MiB (the setting disk_free_bytes)"
        if was_full:
            return f"Sandboxes start on it again: {free_bytes / MIB:.6g} MiB of its disk are free."
        return f"No sandbox starts on it: {free_bytes / MIB:.6g} MiB of its disk are free, which is less than {least}."

    def take(self, sandbox_id: str, need: Need) -> None:
        """Reserve room. It is idempotent."""
        if sandbox_id not in self.sandboxes:
            self.sandboxes[sandbox_id] = need
            self._add(need, 1)

    def give_back(self, sandbox_id: str) -> None:
        """Free it again. It is idempotent."""
        need = self.sandboxes.pop(sandbox_id, None)
        if need is not None:
            self._add(need, -1)

    def _add(self, need: Need, sign: int) -> None:
        self.cpus += sign * need.cpus
        self.memory += sign * need.memory_bytes
        self.disk += sign * need.disk_bytes
        self.gpus += sign * need.gpus

    # --- requests

    def client(self) -> aiohttp.ClientSession:
        """Return the HTTP client of this worker. Raises `WorkerFailed` once it is lost."""
        if self.lost:
            raise WorkerFailed(f"The worker {self.name} is lost.")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
        return self._session

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, bytes]:
        """Send a request and return the status and body of its answer; `timeout_s` bounds all of it. Raises
        `WorkerFailed`."""
        with self._failing():
            async with asyncio.timeout(timeout_s):
                named = {WORKER_ID: self.id, **self._headers, **(headers or {})}
                target = f"{path}?{query}" if query else path
                status, data = await self._connections.send(method, target, named, body)
        if status == 401:
            raise self._restarted()
        return status, data

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its response, for what streams; `timeout_s` bounds all of it. Raises
        `WorkerFailed`."""
        session, named = self.client(), {WORKER_ID: self.id, **(headers or {})}
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        url = URL(self.url + path + (f"?{query}" if query else ""), encoded=True)
        with self._failing():
            async with session.request(
                method, url, data=body, headers=named, timeout=limits, allow_redirects=False
            ) as response:
                if response.status == 401:
                    raise self._restarted()
                self._open.add(response)
                try:
                    yield response
                finally:
                    self._open.discard(response)

    def _restarted(self) -> WorkerFailed:
        """Return the error for a refused token, which is the admin's token and not the caller's."""
        return WorkerFailed(f"The worker {self.name} was restarted and has not registered again yet.")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        if self.lost:
            raise WorkerFailed(f"The worker {self.name} is lost.")
        try:
            yield
        except TimeoutError:
            raise WorkerFailed(f"The worker {self.name} did not answer in time.") from None
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            why = "is lost" if self.lost else f"does not answer ({type(error).__name__})"
            raise WorkerFailed(f"The worker {self.name} {why}.") from None

    async def create(self, request: CreateSandbox, timeout_s: float) -> SandboxCreated:
        """Start a sandbox. Raises `WorkerRefused` or `WorkerFailed`."""
        return await self._call("POST", "/sandboxes", SandboxCreated, body=request, timeout_s=timeout_s)

    async def delete(self, sandbox_id: str) -> str:
        """Remove a sandbox; returns its log. Raises `WorkerFailed`."""
        return (await self._call("DELETE", f"/sandboxes/{sandbox_id}", Removed)).log

    async def usage(self, sandbox_id: str) -> Usage:
        """Return what a sandbox uses now. Raises `WorkerFailed`, also if it cannot be measured."""
        return await self._call("GET", f"/sandboxes/{sandbox_id}/stats", Usage)

    async def take_snapshot(self, sandbox_id: str, name: str) -> str:
        """Keep the files of a sandbox; returns the name from which others start. Raises `WorkerRefused` or
        `WorkerFailed`."""
        path, body = f"/sandboxes/{sandbox_id}/snapshot", TakeSnapshot(name=name)
        return (await self._call("POST", path, SnapshotTaken, body=body, timeout_s=SNAPSHOT_S)).name

    async def snapshots(self) -> list[str]:
        """Return the snapshots that it holds. Raises `WorkerFailed`."""
        return (await self._call("GET", "/snapshots", HeldSnapshots)).snapshots

    async def remove_snapshot(self, name: str) -> None:
        """Remove one. Raises `WorkerFailed`."""
        await self._call("DELETE", "/snapshots", Removed, query=f"name={quote(name, safe='')}")

    async def prepare_image(self, image: str) -> float:
        """Bring an image to its machine; returns the seconds that it took. Raises `WorkerFailed`."""
        asked = PrepareImage(image=image)
        return (await self._call("POST", "/images", ImagePrepared, body=asked, timeout_s=PULL_S)).seconds

    async def build_image(self, build: bytes, timeout_s: float) -> str:
        """Build the image of a task (the JSON of a `BuildImage`), unless it is there; returns its name. Raises
        `WorkerRefused` if that is the task's fault, and `WorkerFailed`."""
        limit_s = BUILDS_IN_TURN * timeout_s + CALL_S
        return (await self._call("POST", "/builds", ImageBuilt, body=build, timeout_s=limit_s)).image

    async def held(self) -> HeldSandboxes:
        """Return the sandboxes that it holds. Raises `WorkerFailed`."""
        return await self._call("GET", "/sandboxes", HeldSandboxes)

    async def _call(
        self,
        method: str,
        path: str,
        model: type[Answer],
        *,
        query: str = "",
        body: BaseModel | bytes | None = None,
        timeout_s: float = CALL_S,
    ) -> Answer:
        """Send a request of the protocol and read its answer. Raises `WorkerRefused` or `WorkerFailed`."""
        sent = body.model_dump_json(exclude_none=True).encode() if isinstance(body, BaseModel) else body
        kind = None if body is None else {"Content-Type": "application/json"}
        status, data = await self.ask(method, path, query=query, body=sent, headers=kind, timeout_s=timeout_s)
        if status == 200:
            try:
                return model.model_validate_json(data)
            except ValidationError:
                raise WorkerFailed(
                    f"The worker {self.name} answered with something else than a {model.__name__}."
                ) from None
        fault = read_fault(data, status, self.name)
        raise (WorkerRefused if fault.fault == "caller" else WorkerFailed)(fault.detail)

    async def close(self) -> None:
        """End every request to it."""
        self.lost = True
        self._connections.close()
        for response in list(self._open):
            response.close()  # its reader would not notice that the session is closed
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)


def read_fault(data: bytes, status: int, name: str) -> Fault:
    """Return the error in a worker's answer."""
    try:
        return Fault.model_validate_json(data)
    except ValidationError:
        return Fault(detail=f"The worker {name} answered with the HTTP status {status}.")
