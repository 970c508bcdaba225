"""Sandboxes that a worker starts ahead: a start finds one that is ready, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import Sandbox
from ale_rock.worker.service import WorkerService
from ale_rock.worker.settings import WorkerSettings
from ale_rock.worker.warm_sandboxes import read_counts
from ale_testing.fake_sandboxes import MemoryProvider

from .conftest import Worker, Workers, local_provider

pytestmark = pytest.mark.bwrap
MIB = 1 << 20


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def inside(worker: Worker, box: str) -> Sandbox:
    """The provider's sandbox behind one of the worker."""
    return worker.service.held[box].sandbox


async def test_a_start_takes_one_that_is_ready_and_is_served_as_any_other(workers: Workers) -> None:
    async with workers(warm={"*": 2}) as worker:
        cold = await worker.create()
        assert inside(worker, cold).id == cold, "nothing is started before anybody has asked"
        await until(lambda: worker.service.warm.count == 2)
        warm = await worker.create(env={"KEY": "value"}, files={"in/file": b"text"}, labels={"run": "1"}, lifetime_s=60)
        assert inside(worker, warm).id != warm
        done = await worker.act(warm, "execute", command=["sh", "-c", "echo $KEY; cat in/file"])
        assert done["stdout"] == "value\ntext"
        code, sentence = await worker.refused(warm, "write_file", path="/usr/no", content="x")
        assert (code, f"The sandbox {warm} could not write" in sentence) == (4000, True)
        await until(lambda: worker.service.warm.count == 2)
        plain = await worker.create(files={"more": b"1"})
        assert inside(worker, plain).id != plain
        done = await worker.act(plain, "execute", command=["sh", "-c", "echo ${KEY-none}; ls"])
        assert done["stdout"] == "none\nmore\n"
        log = (await worker.client.delete(f"/sandboxes/{warm}")).json()["log"]
        assert "cat in/file" in log
        assert log.endswith("the sandbox ends: it was stopped\n")
        os.kill(inside(worker, plain).record.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        await until(lambda: plain not in worker.service.held)
        assert (await worker.refused(plain, "execute", command=["true"]))[1].startswith(f"The sandbox {plain} is gone")
        listed = (await worker.client.get("/sandboxes")).json()["sandboxes"]
        assert listed == [{"id": cold, "alive": True}, {"id": plain, "alive": False}]
    assert await local_provider().list() == [], "those that are ready end with the worker"


async def test_they_take_no_memory_that_others_ask_for(workers: Workers) -> None:
    async with workers(warm={"*": 3}, memory_bytes=1024 * MIB) as worker:
        small = {"resources": {"memory_mib": 256}}
        await worker.create(**small)
        await until(lambda: worker.service.warm.count == 3)
        large = await worker.create(resources={"memory_mib": 512})
        assert inside(worker, large).id == large
        assert worker.service.warm.count == 1
        await worker.create(**small)
        assert worker.service.warm.count == 0
        await worker.create(resources={"memory_mib": 512})  # how much is promised is for the admin to say
        await asyncio.sleep(0.3)
        assert worker.service.warm.count == 0
        assert len(worker.service.held) == 4
        async with asyncio.timeout(60):  # what gave way may still be ending
            while len(await worker.service.provider.list()) != 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_one_that_has_died_is_not_handed_out(workers: Workers) -> None:
    async with workers(warm={"*": 1}) as worker:
        await worker.create()
        await until(lambda: worker.service.warm.count == 1)
        (dead,) = {each.id for each in await worker.service.provider.list()} - worker.service.held.keys()
        ready = worker.service.provider.sandboxes[dead]  # type: ignore[attr-defined]
        os.kill(ready.record.pid, signal.SIGKILL)
        await ready.channel.closed.wait()
        box = await worker.create()
        assert inside(worker, box).id != dead
        assert (await worker.act(box, "execute", command=["true"]))["exit_code"] == 0


async def test_settings_that_cannot_be_met_are_refused() -> None:
    assert read_counts(["4", "python:3.11=2", "host:5000/a@sha256:b=1"]) == {
        "*": 4,
        "python:3.11": 2,
        "host:5000/a@sha256:b": 1,
    }
    for wrong in ("", "x", "a=", "=0", "python:3.11", "a=-1", "1.5"):
        with pytest.raises(ConfigError, match="--warm takes"):
            read_counts([wrong])
    service = WorkerService(local_provider(), WorkerSettings(warm={"python:3.11": 1}))
    with pytest.raises(ConfigError, match="no images"):
        async with service:
            pass


async def test_an_image_is_prepared_by_a_sandbox_of_it_and_refused_where_there_are_none(worker: Worker) -> None:
    provider = MemoryProvider()
    provider.capabilities = frozenset({"images"})  # type: ignore[misc]
    async with WorkerService(provider, WorkerSettings()) as service:
        assert await service.prepare_image("python:3.11") >= 0
        assert (provider.started, provider.alive, service.images) == (1, set(), {"python:3.11"})
        provider.failures = [SandboxError("The registry does not answer.")]
        with pytest.raises(SandboxError, match="registry"):
            await service.prepare_image("python:3.12")
        assert service.images == {"python:3.11"}
    refused = await worker.client.post("/images", json={"image": "python:3.11"})
    assert (refused.status_code, refused.json()["fault"]) == (400, "caller")
