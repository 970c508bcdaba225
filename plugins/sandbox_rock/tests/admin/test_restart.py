"""The admin is killed (`kill -9`) and started again on SQLite or PostgreSQL: every sandbox is found again, or reported
lost."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from simulated_workers import SimulatedWorkers
from sqlalchemy import NullPool, create_engine, select, update
from support.ports import held_port

from ale_rock.admin.tables import SANDBOXES
from ale_rock.schemas import ROCK_BASE

PROGRAM = """
import json, sys, uvicorn
from ale_rock.app import make_app
from ale_rock.admin.settings import Settings
given = json.loads(sys.argv[1])
port = given.pop("port")
uvicorn.run(make_app(Settings(**given)), host="127.0.0.1", port=port, log_level="warning")
"""
PATIENT_S, HASTY_S = 60.0, 8.0
"""How long an admin waits for its workers where none is lost, and where one is: the others are in this process, which
may be held up."""


def has_row(database: str, sandbox_id: str) -> bool:
    """Whether the admin has written that there is such a sandbox: only then does it have to remember it."""
    with create_engine(database, poolclass=NullPool).connect() as rows:
        return rows.scalar(select(SANDBOXES.c.state).where(SANDBOXES.c.id == sandbox_id)) is not None


class AdminProcess:
    """An admin in a process of its own, always at the same port and database."""

    def __init__(self, database: str, port: int, **settings: Any) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._given = json.dumps({"database": database, "port": port, "worker_timeout_s": PATIENT_S, **settings})
        self._process: asyncio.subprocess.Process | None = None
        self.http = httpx.AsyncClient(base_url=self.url, timeout=60)

    async def start(self, workers: SimulatedWorkers | None = None) -> None:
        """Start it and wait until it answers. The workers that it had go to it at once, not at their next heartbeat."""
        self._process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, self._given)
        while True:
            assert self._process.returncode is None
            try:
                await self.http.get("/health")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.05)
        for worker in workers.workers.values() if workers is not None else ():
            worker.news.set()

    async def kill(self) -> None:
        """Kill it as nobody can guard against."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Post to ROCK's API."""
        return (await self.http.post(ROCK_BASE + path, json=body)).json()

    async def status(self, sandbox_id: str) -> dict[str, Any]:
        """Return the state of a sandbox."""
        query = {"sandbox_id": sandbox_id, "include_all_states": True}
        return (await self.http.get(f"{ROCK_BASE}/get_status", params=query)).json()["result"]


@asynccontextmanager
async def running(database: str, **settings: Any) -> AsyncIterator[AdminProcess]:
    """Run an admin."""
    with held_port() as port:
        admin = AdminProcess(database, port, **settings)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.kill()
            await admin.http.aclose()


async def test_a_killed_admin_finds_every_sandbox_again(database, until):
    async with running(database) as admin, SimulatedWorkers(admin.url, 3) as workers:
        ids = [f"s{number}" for number in range(12)]
        await asyncio.gather(*(admin.post("/start_async", sandbox_id=each, image="a", cpus=0.1) for each in ids))
        await admin.post("/stop", sandbox_id="s0")
        await admin.kill()
        await admin.start(workers)
        for each in await asyncio.gather(*(admin.status(each) for each in ids[1:])):
            assert each["is_alive"], each
        assert (await admin.status("s0"))["state"] == "stopped"
        ran = await admin.post("/execute", sandbox_id="s1", command="echo")
        assert ran["result"]["stdout"] == "echo"
        same = await admin.post("/start_async", sandbox_id="s1", image="a", cpus=0.1)
        assert same["status"] == "Success"
        assert sum(worker.started for worker in workers.workers.values()) == len(ids)
        other = await admin.post("/start_async", sandbox_id="s1", image="b", cpus=0.1)
        assert "another spec" in other["message"]


async def test_what_ended_while_the_admin_was_away_is_reported_lost(database, until):
    async with (
        running(database, worker_timeout_s=HASTY_S) as admin,
        SimulatedWorkers(admin.url, 2) as workers,
    ):
        await asyncio.gather(*(admin.post("/start_async", sandbox_id=f"s{n}", image="a") for n in range(6)))
        away = set(workers[0].sandboxes)
        died = next(iter(workers[1].sandboxes))
        await admin.kill()
        workers[0].silent = True
        del workers[1].sandboxes[died]
        last = next(iter(workers[1].sandboxes))
        with create_engine(database).begin() as rows:  # as if killed before it wrote that this one runs
            rows.execute(update(SANDBOXES).where(SANDBOXES.c.id == last).values(state="pending", started=None))
        workers[1].sandboxes["stray"] = None
        await admin.start(workers)
        for name in (last, *(f"s{n}" for n in range(6))):
            status = await admin.status(name)
            assert status["is_alive"] == (name not in away and name != died), status
        status = await admin.status(next(iter(away)))
        assert status["state_history"][-1]["event"] == "lost"
        assert "did not come back" in status["message"]
        failed = await admin.post("/execute", sandbox_id=died, command="true")
        assert failed["result"]["code"] == 5000
        await until(lambda: "stray" not in workers[1].sandboxes)


async def test_a_start_during_which_the_admin_is_killed_is_found_or_reported_lost(database, until):
    async with running(database) as admin, SimulatedWorkers(admin.url, 1) as workers:
        workers[0].gate = gate = asyncio.Event()
        asking = asyncio.create_task(admin.post("/start_async", sandbox_id="half", image="a"))

        await until(lambda: has_row(database, "half"))
        await admin.kill()
        with pytest.raises(httpx.TransportError):
            await asking
        gate.set()
        await admin.start(workers)

        async def settled() -> bool:
            return (await admin.status("half"))["state"] != "pending"

        await until(settled)
        assert (await admin.status("half"))["is_alive"] == ("half" in workers[0].sandboxes)
        again = await admin.post("/start_async", sandbox_id="half", image="a")
        assert again["status"] == "Success"
        assert list(workers[0].sandboxes) == ["half"]


async def test_what_waited_in_the_queue_is_reported_lost_and_can_be_started_again(database, until):
    async with running(database, cpu_overcommit=1.0) as admin, SimulatedWorkers(admin.url, 1, cpus=1) as workers:
        await admin.post("/start_async", sandbox_id="first", image="a", cpus=1)
        waiting = asyncio.create_task(admin.post("/start_async", sandbox_id="second", image="a", cpus=1))

        await until(lambda: has_row(database, "second"))
        await admin.kill()
        await asyncio.gather(waiting, return_exceptions=True)
        await admin.start(workers)
        status = await admin.status("second")
        assert (status["state"], status["is_alive"]) == ("stopped", False)
        assert "waited in the queue" in status["message"]
        await admin.post("/stop", sandbox_id="first")
        assert (await admin.post("/start_async", sandbox_id="second", image="a", cpus=1))["status"] == "Success"
        assert list(workers[0].sandboxes) == ["second"]
