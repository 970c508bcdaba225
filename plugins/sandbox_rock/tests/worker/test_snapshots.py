"""Snapshots of a worker's sandboxes, and what is said where the provider has none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ale.specs.driver import DriverContext
from ale_local import LocalSandboxConfig, LocalSandboxProvider
from ale_rock.admin.settings import Settings
from ale_rock.app import make_app as make_admin
from ale_rock.http.server import listener_at, serving
from ale_rock.schemas import ROCK_BASE
from ale_rock.worker.app import make_app
from ale_rock.worker.settings import WorkerSettings

from .conftest import Body, Worker, Workers, bound, served, url_of


@pytest.mark.bwrap
async def test_sandboxes_start_from_a_snapshot_until_it_is_removed(worker: Worker) -> None:
    first = await worker.create()
    await worker.act(first, "write_file", path="kept", content="text")
    taken = await worker.client.post(f"/sandboxes/{first}/snapshot", json={"name": "rock-one"})
    assert taken.json() == {"name": "rock-one"}
    assert "rock-one" in worker.service.images
    assert (await worker.client.get("/snapshots")).json() == {"snapshots": ["rock-one"]}
    second = await worker.create(from_snapshot="rock-one")
    assert (await worker.act(second, "read_file", path="kept"))["content"] == "text"
    for _ in range(2):
        assert (await worker.client.request("DELETE", "/snapshots?name=rock-one")).status_code == 200
    assert (await worker.client.get("/snapshots")).json() == {"snapshots": []}
    assert "rock-one" not in worker.service.images


@pytest.mark.bwrap
async def test_a_worker_that_starts_again_offers_its_snapshots(workers: Workers) -> None:
    async with workers() as before:
        box = await before.create()
        await before.client.post(f"/sandboxes/{box}/snapshot", json={"name": "rock-one"})
    async with workers() as after:
        assert "rock-one" in after.service.images


@pytest.mark.bwrap
@pytest.mark.parametrize("body", [{}, {"name": "a/b"}, {"name": ""}, {"name": "unnamed-a"}])
async def test_a_name_that_no_snapshot_can_have_is_refused(worker: Worker, body: Body) -> None:
    box = await worker.create()
    answer = await worker.client.post(f"/sandboxes/{box}/snapshot", json=body)
    assert (answer.status_code, answer.json()["fault"]) == (400, "caller")


@pytest.fixture
async def without_snapshots(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A service whose worker's provider makes no snapshots."""
    admin, listener = make_admin(Settings(database=f"sqlite:///{tmp_path}/rock.sqlite")), listener_at("127.0.0.1", 0)
    async with serving(admin, listener):
        url, place = url_of(listener), bound()
        provider = LocalSandboxProvider(LocalSandboxConfig(isolation="none"), DriverContext())
        settings = WorkerSettings(url=url_of(place), admin_url=url)
        async with served(make_app(provider, settings), place), httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client


async def test_without_snapshots_each_request_for_one_is_refused(without_snapshots: httpx.AsyncClient) -> None:
    async def ask(path: str, **body: Any) -> Body:
        answer: Body = (await without_snapshots.post(ROCK_BASE + path, json=body)).json()
        return answer

    asked = {"image": "a", "memory": "64m", "cpus": 0.1, "network": "full"}
    early = await ask("/start_async", **asked, auto_archive_seconds=5)
    assert (early["result"]["code"], "Snapshots" in early["message"]) == (4000, True)
    box = (await ask("/start_async", **asked, auto_delete_seconds=3600))["result"]["sandbox_id"]
    refused = await ask("/commit", sandbox_id=box, image_tag="a:1")
    assert (refused["result"]["code"], "Snapshots" in refused["message"]) == (4000, True)
    commit = (await without_snapshots.get(f"{ROCK_BASE}/commit/{box}")).json()["result"]
    assert (commit["phase"], commit["error_code"]) == ("FAILED", "COMMIT_FAILED")
    assert (await ask("/execute", sandbox_id=box, command="true"))["result"]["exit_code"] == 0
    await ask("/stop", sandbox_id=box)
    for path in ("/restart", f"/sandboxes/{box}/archive"):
        refused = await ask(path, sandbox_id=box)
        assert (refused["result"]["code"], "were not kept" in refused["message"]) == (4000, True)
