"""A worker with local sandboxes, served over HTTP in this process. What tests ask of it goes through a real socket."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from support.sandbox_providers import must_answer

from ale.specs.driver import DriverContext
from ale.specs.sandbox import Resources
from ale_local import LocalSandboxConfig, LocalSandboxProvider
from ale_rock.worker.app import make_app
from ale_rock.worker.service import WorkerService
from ale_rock.worker.settings import WorkerSettings

SMALL = Resources(memory_mib=256, pids=256, disk_mib=64)
Body = dict[str, Any]


class Server(uvicorn.Server):
    """Leaves signals to pytest."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield


@asynccontextmanager
async def served(app: Any, listener: socket.socket | None = None) -> AsyncIterator[str]:
    """Serve an application with its lifespan, and yield its URL."""
    listener = listener or bound()
    server = Server(uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            assert not task.done(), "the server did not start"
            await asyncio.sleep(0.01)
        yield url_of(listener)
    finally:
        server.should_exit = True
        await task
        listener.close()


def bound(port: int = 0) -> socket.socket:
    """A socket at this port; 0: at a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a socket is reached."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Worker:
    """A worker as the admin sees it."""

    def __init__(self, url: str, service: WorkerService, client: httpx.AsyncClient) -> None:
        self.url, self.service, self.client = url, service, client
        self._names = (f"ale-rock-test-{os.getpid()}-{number}" for number in itertools.count())

    async def create(self, sandbox_id: str | None = None, **spec: Any) -> str:
        """Start a sandbox and return its id."""
        sandbox_id = sandbox_id or next(self._names)
        files = {path: base64.b64encode(content).decode() for path, content in spec.pop("files", {}).items()}
        answer = await self.client.post("/sandboxes", json={"id": sandbox_id, "spec": {**spec, "files": files}})
        assert answer.status_code == 200, answer.text
        return sandbox_id

    async def envelope(self, sandbox_id: str, action: str, /, **body: Any) -> Body:
        """Do an action of ROCK and return its envelope."""
        answer = await self.client.post(
            f"/sandboxes/{sandbox_id}/{action}", json={"sandbox_id": sandbox_id} | body, timeout=120
        )
        assert answer.status_code == 200, answer.text
        envelope: Body = answer.json()
        assert envelope.keys() == {"status", "message", "error", "result"}
        return envelope

    async def act(self, sandbox_id: str, action: str, /, **body: Any) -> Body:
        """Do an action that must succeed, and return its result."""
        envelope = await self.envelope(sandbox_id, action, **body)
        assert envelope["status"] == "Success", envelope
        result: Body = envelope["result"]
        return result

    async def refused(self, sandbox_id: str, action: str, /, **body: Any) -> tuple[int, str]:
        """Do an action that must fail; return its code and its sentence."""
        envelope = await self.envelope(sandbox_id, action, **body)
        assert envelope["status"] == "Failed", envelope
        return envelope["result"]["code"], envelope["result"]["failure_reason"]


Workers = Callable[..., AbstractAsyncContextManager[Worker]]


def local_provider() -> LocalSandboxProvider:
    """A provider that is not started."""
    config = LocalSandboxConfig(isolation="bubblewrap", defaults=SMALL)
    return LocalSandboxProvider(config, DriverContext(labels={"test": "rock"}))


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folders of their own, so that tests see only what they started themselves."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def workers() -> Workers:
    """Serves workers with settings of their own."""
    must_answer("local")

    @asynccontextmanager
    async def serve(**settings: Any) -> AsyncIterator[Worker]:
        listener = bound()
        app = make_app(local_provider(), WorkerSettings(url=url_of(listener), **settings))
        async with served(app, listener) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield Worker(url, app.state.service, client)

    return serve


@pytest.fixture
async def worker(workers: Workers) -> AsyncIterator[Worker]:
    """A worker without an admin."""
    async with workers() as started:
        yield started


@pytest.fixture
async def box(worker: Worker) -> str:
    """The id of a sandbox with the session `s`."""
    sandbox_id = await worker.create()
    await worker.act(sandbox_id, "create_session", session="s")
    return sandbox_id
