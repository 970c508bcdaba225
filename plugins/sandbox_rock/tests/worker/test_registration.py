"""What a worker says to its admin. The admin here keeps the protocol and holds no sandboxes of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ale_rock.schemas import WORKER_ID, Fault, Heartbeat, HeartbeatAnswer, Register, Registered
from ale_rock.worker import registration

from .conftest import Worker, Workers, bound, served, url_of

pytestmark = pytest.mark.bwrap


class Admin:
    """Remembers what workers send."""

    def __init__(self, heartbeat_s: float = 60.0, port: int = 0) -> None:
        self.heartbeat_s = heartbeat_s
        self.registered: list[Register] = []
        self.heartbeats: list[Heartbeat] = []
        self.authorizations: set[str | None] = set()
        self.known = True
        self.refuses: str | None = None
        self.news = asyncio.Condition()
        self.listener = bound(port)
        self.url = url_of(self.listener)
        routes = [
            Route("/apis/workers/v1/register", self.register, methods=["POST"]),
            Route("/apis/workers/v1/heartbeat", self.heartbeat, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    async def register(self, request: Request) -> Response:
        """Take a registration."""
        self.authorizations.add(request.headers.get("authorization"))
        self.registered.append(Register.model_validate_json(await request.body()))
        self.known = True
        if self.refuses is not None:
            return Response(Fault(detail=self.refuses, fault="caller").model_dump_json(), 400)
        answer = Registered(worker_id=f"w{len(self.registered)}", heartbeat_s=self.heartbeat_s)
        return await self.answer(answer.model_dump_json())

    async def heartbeat(self, request: Request) -> Response:
        """Take a heartbeat."""
        self.heartbeats.append(Heartbeat.model_validate_json(await request.body()))
        return await self.answer(HeartbeatAnswer(known=self.known).model_dump_json())

    async def answer(self, text: str) -> Response:
        """Tell the test, and answer."""
        async with self.news:
            self.news.notify_all()
        return Response(text)

    async def until(self, count: int, what: list[Register] | list[Heartbeat]) -> None:
        """Wait until there are so many of these."""
        async with asyncio.timeout(120), self.news:
            await self.news.wait_for(lambda: len(what) >= count)


@asynccontextmanager
async def registered(workers: Workers, admin: Admin) -> AsyncIterator[Worker]:
    """A worker that has registered."""
    settings = {"admin_url": admin.url, "admin_token": "w0rker", "token": "t0ken", "name": "one"}
    async with served(admin.app, admin.listener), workers(**settings) as worker:
        worker.client.headers["Authorization"] = "Bearer t0ken"
        await admin.until(1, admin.registered)
        yield worker


async def test_a_worker_says_what_it_offers(workers: Workers) -> None:
    admin = Admin()
    async with registered(workers, admin) as worker:
        said = admin.registered[0]
        assert (said.name, said.url, said.token, said.provider) == ("one", worker.url, "t0ken", "local")
        assert said.cpus >= 1
        assert min(said.memory_bytes, said.disk_bytes) > 1 << 20
        assert "isolated" in (said.capabilities or [])
        assert said.sandboxes == []
        assert admin.authorizations == {"Bearer w0rker"}


async def test_a_sandbox_that_dies_is_reported_at_once_and_until_it_is_taken(workers: Workers) -> None:
    admin = Admin(heartbeat_s=60.0)
    async with registered(workers, admin) as worker:
        box = await worker.create()
        before = len(admin.heartbeats)
        admin.known = False
        os.kill(worker.service.held[box].sandbox.record.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        await admin.until(before + 2, admin.heartbeats)
        first, second = admin.heartbeats[before : before + 2]
        assert [(each.id, each.reason) for each in first.ended] == [(box, "its resident process ended")]
        assert len(admin.registered) == 2, "an admin that does not know the worker makes it register again"
        assert (second.worker_id, second.ended) == ("w2", first.ended)
        assert (second.memory_used_bytes or 0) > 0
        for sent_for, status in (("w1", 409), ("w2", 200)):
            answer = await worker.client.get("/sandboxes", headers={WORKER_ID: sent_for})
            assert answer.status_code == status, "what was sent before it registered again comes late"
    assert len(admin.heartbeats) == before + 2, "what the admin has taken is not said again"


async def test_a_worker_that_the_admin_does_not_take_ends_unless_it_has_sandboxes(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "AGAIN_S", 0.05)
    admin = Admin(heartbeat_s=0.1)
    async with registered(workers, admin) as worker:
        box = await worker.create()
        said: list[str] = []
        worker.service.on_refused = said.append
        admin.known, admin.refuses = False, "A worker one runs already."
        async with asyncio.timeout(120):
            while len(admin.registered) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (said, worker.service.ids) == ([], [box])
        await worker.client.delete(f"/sandboxes/{box}")
        async with asyncio.timeout(120):
            while not said:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert said == [f"The admin at {admin.url} refuses this worker: A worker one runs already."]


async def test_a_worker_waits_for_its_admin_and_survives_its_absence(workers: Workers) -> None:
    holder = bound()  # nobody else gets the port while no admin has it
    port = holder.getsockname()[1]
    admin = Admin(heartbeat_s=0.1, port=port)
    async with workers(admin_url=admin.url) as worker:
        box = await worker.create()
        async with served(admin.app, admin.listener):
            await admin.until(1, admin.registered)
            assert admin.registered[0].sandboxes == [box]
        again = Admin(heartbeat_s=0.1, port=port)
        again.known = False
        async with served(again.app, again.listener):
            await again.until(1, again.registered)
            assert again.registered[0].sandboxes == [box]
            assert (await worker.act(box, "execute", command=["true"]))["exit_code"] == 0
    holder.close()


async def test_a_worker_that_ends_says_so(workers: Workers) -> None:
    admin = Admin()
    async with registered(workers, admin) as worker:
        box = await worker.create()
    assert [(each.id, each.reason) for each in admin.heartbeats[-1].ended] == [(box, "its worker was stopped")]
