"""An admin that serves on a real port, with simulated workers and an HTTP client."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from postgres_server import PostgresServer, why_not
from simulated_workers import SimulatedWorkers
from support.ports import held_port

from ale_rock.admin.service import Service
from ale_rock.admin.settings import Settings
from ale_rock.app import make_app
from ale_rock.http.server import listener_at, serving, url_of
from ale_rock.schemas import ROCK_BASE


@dataclass
class Admin:
    """A service and a client of it."""

    url: str
    service: Service
    workers: SimulatedWorkers
    http: httpx.AsyncClient

    async def post(self, path: str, body: object, **headers: str) -> dict[str, Any]:
        """Post to ROCK's API and return the envelope, which always comes with status 200."""
        return self._envelope(await self.http.post(ROCK_BASE + path, json=body, headers=headers))

    async def get(self, path: str, headers: dict[str, str] | None = None, **query: object) -> dict[str, Any]:
        """Get from ROCK's API."""
        return self._envelope(await self.http.get(ROCK_BASE + path, params=query, headers=headers))

    @staticmethod
    def _envelope(response: httpx.Response) -> dict[str, Any]:
        assert response.status_code == 200, response.text
        envelope = response.json()
        assert set(envelope) == {"status", "message", "error", "result"}
        if envelope["status"] == "Failed":
            assert envelope["result"]["code"] in (4000, 5000, 6000)
            assert envelope["result"]["failure_reason"]
        return envelope

    async def start(self, headers: dict[str, str] | None = None, **asked: object) -> str:
        """Start a sandbox and return its id."""
        asked = {"image": "python:3.11", "cpus": 0.5, "memory": "64m", **asked}
        envelope = await self.post("/start_async", asked, **(headers or {}))
        assert envelope["status"] == "Success", envelope
        return envelope["result"]["sandbox_id"]

    async def status(self, sandbox_id: str) -> dict[str, Any]:
        """Return the state of a sandbox, whichever it is."""
        return (await self.get("/get_status", sandbox_id=sandbox_id, include_all_states=True))["result"]


@asynccontextmanager
async def admin_with(database: Path, workers: int = 1, headers: dict[str, str] | None = None, **given: Any) -> Any:
    """Serve; what is for workers begins with `worker__`."""
    of_workers = {key.removeprefix("worker__"): value for key, value in given.items() if key.startswith("worker__")}
    settings = Settings(
        database=f"sqlite:///{database}",
        **{key: value for key, value in given.items() if not key.startswith("worker__")},
    )
    app, listener = make_app(settings), listener_at("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(app, listener))
        url = url_of(listener)
        group = await stack.enter_async_context(SimulatedWorkers(url, workers, **of_workers))
        client = httpx.AsyncClient(base_url=url, timeout=60, headers=headers)
        yield Admin(url, app.state.service, group, await stack.enter_async_context(client))


@pytest.fixture
def serve(tmp_path: Path) -> Any:
    """`async with serve(workers=3, queue_limit=1) as admin:`."""
    return lambda **given: admin_with(tmp_path / "rock.sqlite", **given)


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    """A service with three workers."""
    async with admin_with(tmp_path / "rock.sqlite", workers=3) as admin:
        yield admin


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of these tests alone."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="ale-postgres-", dir="/tmp"))
    folder.chmod(0o711)  # the server is not root, nor may its user see a tester's own temporary folder
    with held_port() as port:
        server = PostgresServer(folder / "server", port)
        yield server
        server.stop()
    shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'rock.sqlite'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    server.create(name := uuid4().hex)
    return server.url(name)


@pytest.fixture
def until() -> Any:
    """`await until(lambda: ...)`: wait until it holds; pytest's time-out ends what never does."""

    async def wait(holds: Callable[[], Any]) -> None:
        while True:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.02)

    return wait
