"""Workers that keep the protocol and start nothing, as many as asked for, in one process.

They show what the admin can do, and what it does when workers fail: a sandbox is an entry of a dictionary, a command's
output is the command. They listen at one port, each under a path of its own, and each sends its own heartbeats.
"""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from aiohttp import web
from pydantic import ValidationError
from pydantic_core import to_json

from ale_rock.schemas import (
    BAD_REQUEST,
    WORKERS_BASE,
    BuildImage,
    CreateSandbox,
    EndedSandbox,
    ExecOutcome,
    ExecuteResult,
    Fault,
    Heartbeat,
    HeartbeatAnswer,
    HeldSandbox,
    HeldSandboxes,
    HeldSnapshots,
    ImageBuilt,
    ImageFound,
    ImagePrepared,
    PrepareImage,
    ReadFileResult,
    Register,
    Registered,
    Removed,
    RunResult,
    SandboxCreated,
    SessionResult,
    SnapshotTaken,
    TakeSnapshot,
    UploadResult,
    Usage,
    WriteFileResult,
    failed,
    success,
)

GIB = 1 << 30


@dataclass(eq=False)
class SimulatedWorker:
    """One of them. A test sets how it behaves."""

    register: Register
    start_s: float = 0.0
    """Seconds that a start takes."""
    gate: asyncio.Event | None = None  # a start waits for it
    silent: bool = False
    """It answers nothing and sends nothing, as a machine that has lost its network."""
    refuses: Fault | None = None
    """What it says to each start."""
    sandboxes: dict[str, CreateSandbox | None] = field(default_factory=dict)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    ended: list[EndedSandbox] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    snapshots: set[str] = field(default_factory=set)
    prepared: list[str] = field(default_factory=list)
    image_ids: dict[str, str] = field(default_factory=dict)
    """What the names of its images mean."""
    disk_free: int | None = None
    disk_mib: int | None = None
    """The limit of its sandboxes' disks."""
    started: int = 0
    removed: int = 0
    cancelled: int = 0
    """Requests whose caller hung up before they were done."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, sandbox_id: str, reason: str) -> None:
        """Let a sandbox die."""
        del self.sandboxes[sandbox_id]
        self.ended.append(EndedSandbox(id=sandbox_id, reason=reason, log=self.logs.get(sandbox_id, "")))
        self.news.set()


class SimulatedWorkers:
    """A group of them at one admin; `async with` registers them, and leaves without a farewell."""

    def __init__(
        self,
        admin_url: str,
        count: int,
        *,
        admin_token: str | None = None,
        token: str | None = None,
        cpus: float = 64.0,
        memory_bytes: int = 512 * GIB,
        disk_bytes: int = 4096 * GIB,
        images: tuple[str, ...] = (),
        start_s: float = 0.0,
        keep_orders: bool = True,
    ) -> None:
        self._admin_url, self._admin_token, self._token = admin_url.rstrip("/"), admin_token, token
        self._keep_orders = keep_orders
        self.workers: dict[str, SimulatedWorker] = {}
        for number in range(count):
            register = Register(
                name=f"simulated-{number}",
                url="http://127.0.0.1",
                token=token,
                provider="simulated",
                cpus=cpus,
                memory_bytes=memory_bytes,
                disk_bytes=disk_bytes,
                images=list(images),
            )
            self.workers[register.name] = SimulatedWorker(register, start_s)
        self._stack = AsyncExitStack()
        self._beats: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._url = ""

    def __getitem__(self, number: int) -> SimulatedWorker:
        return self.workers[f"simulated-{number}"]

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 40, middlewares=[self._guard])
        app.add_routes(
            [
                web.post("/{worker}/sandboxes", self._create),
                web.get("/{worker}/sandboxes", self._list),
                web.delete("/{worker}/sandboxes/{id}", self._remove),
                web.put("/{worker}/sandboxes/{id}/files", self._put_file),
                web.get("/{worker}/sandboxes/{id}/files", self._get_file),
                web.post("/{worker}/sandboxes/{id}/snapshot", self._take_snapshot),
                web.get("/{worker}/sandboxes/{id}/logs", self._log),
                web.get("/{worker}/sandboxes/{id}/stats", self._stats),
                web.get("/{worker}/sandboxes/{id}/envd/health", self._envd_health),
                web.post("/{worker}/images", self._prepare_image),
                web.post("/{worker}/builds", self._build),
                web.get("/{worker}/snapshots", self._list_snapshots),
                web.get("/{worker}/images", self._find_image),
                web.delete("/{worker}/snapshots", self._remove_snapshot),
                web.post("/{worker}/sandboxes/{id}/{action}", self._act),
            ]
        )
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self._url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        headers = {"Authorization": f"Bearer {self._admin_token}"} if self._admin_token else {}
        self._session = aiohttp.ClientSession(
            headers=headers, connector=aiohttp.TCPConnector(limit=64), timeout=aiohttp.ClientTimeout(10)
        )
        self._stack.push_async_callback(self._session.close)
        first = [asyncio.ensure_future(self._register(worker)) for worker in self.workers.values()]
        for worker, registered in zip(self.workers.values(), await asyncio.gather(*first), strict=True):
            self._beats[worker.register.name] = asyncio.create_task(self._beat(worker, registered))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._beats.values():
            task.cancel()
        await asyncio.gather(*self._beats.values(), return_exceptions=True)
        await self._stack.aclose()

    # --- to the admin

    async def _post(self, what: str, body: Register | Heartbeat) -> bytes:
        assert self._session is not None
        data = body.model_dump_json(exclude_none=True)
        kind = {"Content-Type": "application/json"}
        async with self._session.post(f"{self._admin_url}{WORKERS_BASE}/{what}", data=data, headers=kind) as response:
            response.raise_for_status()
            return await response.read()

    async def _register(self, worker: SimulatedWorker) -> Registered:
        name = worker.register.name
        body = worker.register.model_copy(
            update={
                "url": f"{self._url}/{name}",
                "sandboxes": list(worker.sandboxes),
                "images": [*worker.register.images, *worker.snapshots],
                "token": self._token,
            }
        )
        return Registered.model_validate_json(await self._post("register", body))

    async def _beat(self, worker: SimulatedWorker, registered: Registered) -> None:
        pause_s = random.random() * registered.heartbeat_s
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(worker.news.wait(), pause_s)
            worker.news.clear()
            pause_s = registered.heartbeat_s
            if not worker.silent:
                ended = list(worker.ended)
                with suppress(aiohttp.ClientError, TimeoutError):
                    beat = Heartbeat(worker_id=registered.worker_id, ended=ended, disk_free_bytes=worker.disk_free)
                    told = HeartbeatAnswer.model_validate_json(await self._post("heartbeat", beat))
                    worker.ended = worker.ended[len(ended) :]
                    if not told.known:
                        registered = await self._register(worker)

    # --- from the admin

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        worker = self._worker(request)
        if worker.silent:
            await asyncio.sleep(3600)
        if self._token is not None and request.headers.get("Authorization") != f"Bearer {self._token}":
            return _answer(Fault(detail="This is not the worker's token."), 401)
        answer: web.StreamResponse = await handler(request)
        return answer

    def _worker(self, request: web.Request) -> SimulatedWorker:
        return self.workers[request.match_info["worker"]]

    async def _create(self, request: web.Request) -> web.Response:
        worker = self._worker(request)
        try:
            order = CreateSandbox.model_validate_json(await request.read())
        except ValidationError as error:
            return _answer(Fault(detail=str(error), fault="caller"), 400)
        await asyncio.sleep(worker.start_s)
        if worker.gate is not None:
            await worker.gate.wait()
        if worker.refuses is not None:
            return _answer(worker.refuses, 400 if worker.refuses.fault == "caller" else 503)
        worker.sandboxes[order.id] = order if self._keep_orders else None
        worker.started += 1
        name = worker.register.name
        return _answer(SandboxCreated(id=order.id, host_name=name, host_ip="127.0.0.1", disk_mib=worker.disk_mib))

    async def _list(self, request: web.Request) -> web.Response:
        held = [HeldSandbox(id=sandbox_id, alive=True) for sandbox_id in self._worker(request).sandboxes]
        return _answer(HeldSandboxes(sandboxes=held))

    async def _remove(self, request: web.Request) -> web.Response:
        worker, sandbox_id = self._worker(request), request.match_info["id"]
        worker.sandboxes.pop(sandbox_id, None)
        worker.removed += 1
        return _answer(Removed(log=worker.logs.get(sandbox_id, "")))

    async def _log(self, request: web.Request) -> web.StreamResponse:
        worker, sandbox_id = self._worker(request), request.match_info["id"]
        if request.query.get("follow") != "true":
            return web.Response(text=worker.logs.get(sandbox_id, ""))
        response, sent = web.StreamResponse(), 0
        await response.prepare(request)
        while sandbox_id in worker.sandboxes:
            text = worker.logs.get(sandbox_id, "")
            await response.write(text[sent:].encode())
            sent = len(text)
            await asyncio.sleep(0.02)
        return response

    async def _stats(self, request: web.Request) -> web.Response:
        usage = self._worker(request).usage.get(request.match_info["id"])
        if usage is None:
            return _answer(Fault(detail="The simulated sandbox has no 'Measures'."), 503)
        return _answer(usage)

    async def _envd_health(self, request: web.Request) -> web.Response:
        return web.Response(status=204 if request.match_info["id"] in self._worker(request).sandboxes else 502)

    async def _prepare_image(self, request: web.Request) -> web.Response:
        worker, image = self._worker(request), PrepareImage.model_validate_json(await request.read()).image
        if worker.refuses is not None:
            return _answer(worker.refuses, 503)
        worker.prepared.append(image)
        return _answer(ImagePrepared(seconds=0.5))

    async def _build(self, request: web.Request) -> web.Response:
        worker, asked = self._worker(request), BuildImage.model_validate_json(await request.read())
        if worker.refuses is not None:
            return _answer(worker.refuses, 422 if worker.refuses.fault == "caller" else 503)
        worker.files["", "Dockerfile"] = asked.dockerfile.encode()
        return _answer(ImageBuilt(image="ale-build:0123"))

    async def _take_snapshot(self, request: web.Request) -> web.Response:
        name = TakeSnapshot.model_validate_json(await request.read()).name
        self._worker(request).snapshots.add(name)
        return _answer(SnapshotTaken(name=name))

    async def _list_snapshots(self, request: web.Request) -> web.Response:
        return _answer(HeldSnapshots(snapshots=sorted(self._worker(request).snapshots)))

    async def _find_image(self, request: web.Request) -> web.Response:
        return _answer(ImageFound(digest=self._worker(request).image_ids.get(request.query["image"])))

    async def _remove_snapshot(self, request: web.Request) -> web.Response:
        self._worker(request).snapshots.discard(request.query["name"])
        return _answer({})

    async def _act(self, request: web.Request) -> web.Response:
        worker, sandbox_id, action = self._worker(request), request.match_info["id"], request.match_info["action"]
        if sandbox_id not in worker.sandboxes:
            return _answer(Fault(detail=f"The sandbox {sandbox_id} does not run here."), 503)
        if action == "upload":
            return await self._upload(request, worker, sandbox_id)
        asked = await request.json()
        if str(asked.get("command", "")).startswith("sleep "):
            try:
                await asyncio.sleep(float(asked["command"].split()[1]))
            except asyncio.CancelledError:
                worker.cancelled += 1
                raise
        if action == "exec":
            return _answer(ExecOutcome(exit_code=0, stdout=b64encode(str(asked["command"]).encode()).decode()))
        if action == "write_file":
            worker.files[sandbox_id, asked["path"]] = asked["content"].encode()
        if action == "read_file" and (sandbox_id, asked["path"]) not in worker.files:
            return _answer(failed(BAD_REQUEST, f"There is no file {asked['path']}."))
        results: dict[str, Any] = {
            "create_session": lambda: SessionResult(),
            "close_session": lambda: SessionResult(),
            "run_in_session": lambda: RunResult(output=asked["command"], exit_code=0),
            "execute": lambda: ExecuteResult(stdout=str(asked["command"]), exit_code=0),
            "write_file": lambda: WriteFileResult(),
            "read_file": lambda: ReadFileResult(content=worker.files[sandbox_id, asked["path"]].decode()),
            "kill_agent_processes": lambda: None,
        }
        return _answer(success(results[action]()))

    async def _upload(self, request: web.Request, worker: SimulatedWorker, sandbox_id: str) -> web.Response:
        form = await request.post()
        uploaded = form["file"]
        assert isinstance(uploaded, web.FileField)
        worker.files[sandbox_id, str(form["target_path"])] = uploaded.file.read()
        return _answer(success(UploadResult(file_name=uploaded.filename)))

    async def _put_file(self, request: web.Request) -> web.Response:
        self._worker(request).files[request.match_info["id"], request.query["path"]] = await request.read()
        return _answer({})

    async def _get_file(self, request: web.Request) -> web.Response:
        content = self._worker(request).files.get((request.match_info["id"], request.query["path"]))
        if content is None:
            return _answer({"detail": "There is no such file.", "kind": "missing"}, 404)
        return web.Response(body=content, content_type="application/octet-stream")


def _answer(value: object, status: int = 200) -> web.Response:
    return web.Response(body=to_json(value), status=status, content_type="application/json")
