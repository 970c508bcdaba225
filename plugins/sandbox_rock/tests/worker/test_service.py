"""Sandboxes of a worker: their start and end, the token, and what a dead one is told as."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale_rock.schemas import CreateSandbox
from ale_rock.worker import failed_removals
from ale_rock.worker import ports as ports_module
from ale_rock.worker.service import WorkerService
from ale_rock.worker.settings import WorkerSettings
from ale_sandbox.containers.config import ContainerConfig
from ale_sandbox.containers.provider import ContainerProvider

from .conftest import SMALL, Worker, Workers, local_provider

pytestmark = pytest.mark.bwrap
OWNER = """
import sys

import uvicorn

from ale_local import LocalSandboxConfig, LocalSandboxProvider
from ale.specs.driver import DriverContext
from ale_rock.worker.app import make_app
from ale_rock.worker.settings import WorkerSettings

app = make_app(LocalSandboxProvider(LocalSandboxConfig(), DriverContext()), WorkerSettings())
uvicorn.run(app, fd=int(sys.argv[1]), log_level="error")
"""


async def post_create(worker: Worker, sandbox_id: str, **spec: object) -> httpx.Response:
    return await worker.client.post("/sandboxes", json={"id": sandbox_id, "spec": spec})


async def test_the_same_start_again_returns_the_same_sandbox(worker: Worker) -> None:
    answers = await asyncio.gather(*(post_create(worker, "ale-same") for _ in range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
    first = answers[0].json()
    assert all(answer.json() == first for answer in answers)
    assert first.keys() == {"id", "host_name", "host_ip", "started_s", "disk_mib"}
    assert first["disk_mib"] == SMALL.disk_mib
    other = await post_create(worker, "ale-same", env={"X": "y"})
    assert (other.status_code, other.json()["fault"]) == (400, "caller")
    assert "another spec" in other.json()["detail"]
    assert (await worker.client.get("/sandboxes")).json() == {"sandboxes": [{"id": "ale-same", "alive": True}]}
    for _ in range(2):
        assert (await worker.client.delete("/sandboxes/ale-same")).status_code == 200
    assert (await worker.client.get("/sandboxes")).json() == {"sandboxes": []}
    assert await worker.service.provider.list() == []


async def test_a_spec_that_cannot_be_met_is_the_callers_fault(worker: Worker) -> None:
    for spec in ({"resources": {"gpus": 1}}, {"network": "full"}, {"nonsense": 1}, {"files": {"x": "?"}}):
        answer = await post_create(worker, "ale-never", **spec)
        assert (answer.status_code, answer.json()["fault"]) == (400, "caller"), answer.text
    for name in ("../up", "", "a b", "-x", "x" * 200):
        assert (await post_create(worker, name)).status_code == 400
    assert (await worker.client.get("/sandboxes")).json() == {"sandboxes": []}


async def test_secrets_are_in_no_error(worker: Worker) -> None:
    body = {"id": "ale-never", "spec": {"env": {"TOKEN": ["s3cret"]}}, "registry_password": {"s3cret": 1}}
    answer = await worker.client.post("/sandboxes", json=body)
    assert answer.status_code == 400
    assert "s3cret" not in answer.text
    await worker.client.post("/sandboxes", json={"id": "ale-kept", "spec": {}, "registry_password": "s3cret"})
    assert "s3cret" not in worker.service.held["ale-kept"].request.model_dump_json()


async def test_a_sandbox_that_is_removed_while_it_starts_does_not_stay(worker: Worker) -> None:
    starting = asyncio.create_task(post_create(worker, "ale-early"))
    while "ale-early" not in worker.service.ids:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (await worker.client.delete("/sandboxes/ale-early")).status_code == 200
    answer = await starting
    assert (answer.status_code, answer.json()["fault"]) == (503, "service")
    assert worker.service.ids == []
    assert await worker.service.provider.list() == []


async def test_a_removal_that_fails_is_reported_and_tried_again(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise SandboxError("The disk is busy.")

    monkeypatch.setattr(failed_removals, "AGAIN_S", 0.05)
    asked, alone = await worker.create(), await worker.create()
    for box in (asked, alone):
        monkeypatch.setattr(worker.service.held[box].sandbox, "clean_up", fail)
    remove = worker.service.provider.remove
    monkeypatch.setattr(worker.service.provider, "remove", fail)
    for box in (asked, asked, alone):
        answer = await worker.client.delete(f"/sandboxes/{box}")
        assert (answer.status_code, answer.json()["fault"]) == (503, "service")
        assert "The disk is busy." in answer.json()["detail"]
    left = {each["id"]: each["alive"] for each in (await worker.client.get("/sandboxes")).json()["sandboxes"]}
    assert left == {asked: False, alone: False}
    assert (await post_create(worker, asked)).status_code == 503, "what was there before is still there"
    monkeypatch.setattr(worker.service.provider, "remove", remove)
    assert (await worker.client.delete(f"/sandboxes/{asked}")).status_code == 200
    async with asyncio.timeout(120):
        while (await worker.client.get("/sandboxes")).json()["sandboxes"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await worker.service.provider.list() == []


async def test_ports_that_are_not_used_give_way_and_none_is_opened_after_the_end(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports_module, "MOST_PORTS", 2)
    box = await worker.create()
    ports = worker.service.held[box].ports
    first, second = await ports.session(1000), await ports.session(1001)
    assert await ports.session(1000) is first
    await ports.session(1002)
    assert (first.closed, second.closed) == (False, True)
    await worker.client.delete(f"/sandboxes/{box}")
    assert first.closed
    with pytest.raises(SandboxError, match="is stopped"):
        await ports.session(1003)


async def test_a_dead_sandbox_is_the_services_fault_and_never_an_exit_code(worker: Worker) -> None:
    box = await worker.create()
    await worker.act(box, "create_session", session="s")
    running = asyncio.create_task(
        worker.envelope(box, "run_in_session", session="s", command="sleep 60", check="silent")
    )
    await asyncio.sleep(0.3)
    reported: list[tuple[str, str]] = []
    worker.service.on_ended = lambda sandbox_id, reason: reported.append((sandbox_id, reason))
    sandbox = worker.service.held[box].sandbox
    os.kill(sandbox.record.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    envelope = await running
    assert (envelope["status"], envelope["result"]["code"]) == ("Failed", 5000)
    assert f"The sandbox {box} is gone" in envelope["message"]
    assert reported == [(box, "its resident process ended")]
    for action, more in [
        ("run_in_session", {"session": "s", "command": "true", "check": "silent"}),
        ("execute", {"command": ["true"]}),
        ("read_file", {"path": "x"}),
        ("write_file", {"path": "x", "content": ""}),
    ]:
        code, sentence = await worker.refused(box, action, **more)
        assert (code, "its resident process ended" in sentence) == (5000, True)
    answer = await worker.client.post(f"/sandboxes/{box}/exec", json={"command": "true"})
    assert (answer.status_code, answer.json()["fault"]) == (503, "service")
    answer = await worker.client.get(f"/sandboxes/{box}/files?path=x")
    assert (answer.status_code, answer.json()["fault"]) == (503, "service")
    assert (await worker.client.get("/sandboxes")).json() == {"sandboxes": [{"id": box, "alive": False}]}
    assert (await worker.refused("ale-never-there", "execute", command=["true"]))[0] == 5000
    async with asyncio.timeout(120):
        while await worker.service.provider.list():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await worker.create(box)
    assert (await worker.act(box, "execute", command=["true"]))["exit_code"] == 0


async def test_a_sandbox_whose_time_is_over_says_so(worker: Worker) -> None:
    box = await worker.create(lifetime_s=0.5)
    async with asyncio.timeout(120):
        while box in worker.service.held:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert "its lifetime is over" in (await worker.refused(box, "execute", command=["true"]))[1]


async def test_without_the_token_nothing_is_answered_but_health(workers: Workers) -> None:
    async with workers(token="t0ken") as worker:
        for headers in (
            {},
            {"Authorization": "Bearer t0ke"},
            {"Authorization": "t0ken"},
            {"Authorization": "Bearer ü"},
        ):
            raw = {name: value.encode() for name, value in headers.items()}
            for method, path in [("GET", "/sandboxes"), ("POST", "/sandboxes/x/execute"), ("DELETE", "/sandboxes/x")]:
                answer = await worker.client.request(method, path, headers=raw)
                assert (answer.status_code, "t0ken" in answer.text) == (401, False)
        assert (await worker.client.get("/health")).status_code == 200
        worker.client.headers["Authorization"] = "Bearer t0ken"
        box = await worker.create()
        assert (await worker.act(box, "execute", command=["true"]))["exit_code"] == 0


async def test_an_orderly_end_stops_every_sandbox(workers: Workers) -> None:
    async with workers() as worker:
        boxes = [await worker.create() for _ in range(2)]
        sandboxes = [worker.service.held[box].sandbox for box in boxes]
        running = asyncio.create_task(worker.client.post(f"/sandboxes/{boxes[0]}/exec", json={"command": "sleep 60"}))
        await asyncio.sleep(0.1)
    assert all(sandbox.process.poll() is not None for sandbox in sandboxes)  # type: ignore[attr-defined]
    assert await local_provider().list() == []
    await asyncio.gather(running, return_exceptions=True)


async def test_a_start_that_fails_tells_about_the_registry(worker: Worker) -> None:
    async with await worker.service.provider.start_sandbox(SandboxSpec(id="ale-taken")):
        await worker.service.provider.close()
        request = CreateSandbox(id="ale-other", spec=SandboxSpec(), registry_username="me", registry_password="s3cret")
        answer = await worker.client.post("/sandboxes", content=request.model_dump_json())
        assert (answer.status_code, answer.json()["fault"]) == (503, "service")
        assert "does not log in to registries" in answer.json()["detail"]
        assert "s3cret" not in answer.text


class ImagesOnly:
    """An engine that only says which image a name means."""

    name = "Images"
    found: str | None = "sha256:1"

    async def find_image(self, image: str) -> str | None:
        """Return the same for each name."""
        return self.found


class BareContainers(ContainerProvider):
    """Can start none."""

    def make_engine(self) -> Any:
        return ImagesOnly()


async def test_an_image_is_forgotten_once_a_start_fails_and_the_engine_has_it_no_more(tmp_path: Path) -> None:
    provider: Any = BareContainers(ContainerConfig(), DriverContext())
    provider.base = tmp_path
    service = WorkerService(provider, WorkerSettings(images=("ale-build:1",)))
    request = CreateSandbox(id="ale-bad", spec=SandboxSpec(image="ale-build:1", workdir="nowhere"))
    for found, left in (("sha256:1", {"ale-build:1"}), (None, set[str]())):
        provider.engine.found = found
        with pytest.raises(ConfigError, match="workdir"):
            await service.create(request)
        assert service.images == left


def traces(marker: str) -> list[bytes]:
    """Processes of this machine whose command line has this word."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            found += [line] if marker.encode() in line else []
    return found


async def test_after_a_kill_of_the_worker_nothing_of_its_sandboxes_is_left(tmp_path: Path) -> None:
    from .conftest import bound, url_of

    listener = bound()
    listener.listen()
    marker = f"4327{os.getpid()}"
    env = {**os.environ, "TMPDIR": str(tempfile.gettempdir())}
    with (tmp_path / "log").open("wb") as log:
        owner = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-c", OWNER, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdout=log,
            stderr=log,
            env=env,
        )
    try:
        async with httpx.AsyncClient(base_url=url_of(listener), timeout=60) as client:
            answer = await client.post("/sandboxes", json={"id": "ale-killed", "spec": {}})
            assert answer.status_code == 200, (answer.text, (tmp_path / "log").read_text())
            body = {"command": f"(setsid sleep {marker} >/dev/null 2>&1 &) ; sleep {marker} & echo on"}
            assert (await client.post("/sandboxes/ale-killed/exec", json=body)).json()["exit_code"] == 0
            assert len(traces(marker)) >= 2
    finally:
        owner.kill()
        owner.wait()
        listener.close()
    async with asyncio.timeout(60):
        while traces(marker):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    async with local_provider() as fresh:
        assert await fresh.list() == []
