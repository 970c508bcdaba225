"""ROCK's own client, with a service whose worker has containers of Docker or Podman. What does not depend on the kind
of sandbox is in the other files of this folder."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rock.actions import Command, CreateBashSessionRequest, ReadFileRequest, UploadRequest
from rock.sdk.common.exceptions import BadRequestRockError
from rock.sdk.sandbox.client import RunMode
from service_process import Service, StartSandbox, serving
from support.sandbox_providers import must_answer, provider_of

from ale.specs.sandbox import ENDPOINT_PORT
from ale_rock.schemas import ALE_BASE, ROCK_BASE
from ale_sandbox.containers.engine import FoundContainer
from ale_sandbox.containers.image_snapshots import OWNER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:deprecated|Use arun instead"),
]
ENGINES = ("docker", "podman")
IMAGE, WARM_IMAGE = "ale-python:1", "ale-base:1"


@pytest.fixture(scope="module", params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ENGINES])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine, which has the image."""
    name = must_answer(request.param)

    async def make_image() -> None:
        async with provider_of(name) as provider:
            if not await provider.engine.find_image(IMAGE):
                await provider.build_image(python=True)

    asyncio.run(make_image())
    return name


@pytest.fixture(scope="module")
def service(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with containers; of one image a sandbox is kept ready."""
    with serving(tmp_path_factory.mktemp(engine), "--worker", engine, "--warm", f"{WARM_IMAGE}=1") as running:
        yield running


@pytest.fixture
async def others(engine: str) -> AsyncIterator[Any]:
    """A provider of the same engine that is not the worker's: what it does, it does behind the worker's back. Snapshots
    that a test makes are removed."""
    async with provider_of(engine) as provider:
        before = await kept(provider)
        yield provider
        for name in await kept(provider) - before:
            await provider.remove_snapshot(name)


async def kept(provider: Any) -> set[str]:
    """Return the snapshots that services have made; other tests may have made others."""
    return {name for name in await provider.snapshots() if name.startswith("ale-snapshot:rock-")}


async def containers(provider: Any) -> set[str]:
    """Return the names of all sandboxes' containers."""
    return {found.name for found in await provider.engine.containers()}


async def until(condition: Any, timeout_s: float = 60) -> None:
    """Wait for a condition."""
    for _ in range(int(20 * timeout_s)):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:g} s: {condition.__name__}")


def sh(text: str) -> Command:
    """A command for a shell."""
    return Command(command=["sh", "-c", text])


async def test_a_container_does_what_the_client_asks_of_it(
    service: Service, start: StartSandbox, tmp_path: Path
) -> None:
    box = await start(image=IMAGE)
    await box.create_session(CreateBashSessionRequest(session="s", env={"GIVEN": "a b"}))
    await box.arun("cd /tmp; x=5", session="s")
    rights = "id -un; grep -c 'CapEff:.0000000000000000' /proc/self/status"
    assert (await box.arun(f'pwd; echo "$x $GIVEN"; {rights}', session="s")).output.split("\n") == [
        *("/tmp", "5 a b", "agent", "1")
    ]
    done = await box.execute(sh("echo out; echo err >&2; exit 3"))
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    (tmp_path / "sent").write_bytes(bytes(range(256)) * 1024)
    assert (await box.upload(UploadRequest(source_path=str(tmp_path / "sent"), target_path="/tmp/up/sent"))).success
    assert (await box.execute(sh("cksum < /tmp/up/sent"))).stdout.split()[1] == str(256 * 1024)
    refused = await box.upload(UploadRequest(source_path=str(tmp_path / "sent"), target_path="/usr/sent"))
    assert (refused.success, "Permission denied" in refused.message) == (False, True)
    job = await box.arun("sh -c 'echo why; exit 3'", mode=RunMode.NOHUP)
    assert (job.exit_code, job.output) == (0, "why"), "as on ROCK: the client reads the output of a failed job"
    greedy = await box.execute(Command(command=["python3", "-c", "bytearray(600 << 20)"]))
    assert greedy.exit_code == 137, "more memory than its limit of 256 MiB"
    used = service.get(f"{ROCK_BASE}/get_sandbox_statistics?sandbox_id={box.sandbox_id}").json()["result"]["now"]
    assert 0 < used["memory_bytes"] < 256 << 20
    assert used["pids"] >= 1
    assert "exec" in service.get(f"{ROCK_BASE}/sandboxes/{box.sandbox_id}/logs").text


async def test_its_ports_are_reached_by_http_and_by_websocket(service: Service, start: StartSandbox) -> None:
    box = await start(image=IMAGE)
    serve = "echo served > page; python3 -m http.server 8080 --bind 127.0.0.1 >log 2>&1 &"
    await box.execute(sh(serve + " until curl -s 127.0.0.1:8080/page; do sleep 0.1; done"))
    path = f"{ROCK_BASE}/sandboxes/{box.sandbox_id}"
    assert service.get(f"{path}/proxy/port/8080/page").text == "served\n"
    url = f"{service.url}{path}/portforward?port=8080"
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        await socket.send_bytes(b"GET /page HTTP/1.0\r\n\r\n")
        received = b"".join([message.data async for message in socket])
    assert received.endswith(b"\r\n\r\nserved\n")


async def test_it_reaches_what_its_network_policy_names(service: Service, start: StartSandbox) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"reached\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        to = "exec 3<>/dev/tcp/127.0.0.1/{} && echo >&3 && cat <&3"
        for headers, reached in (({"X-Network": "allow", "X-Allow": f"127.0.0.1:{port}"}, "reached\n"), ({}, "")):
            box = await start(image=IMAGE, extra_headers=headers)
            done = await box.execute(Command(command=["bash", "-c", to.format(port)], timeout=20))
            assert (done.stdout, done.exit_code == 0) == (reached, bool(reached)), headers
        spec = {"image": IMAGE, "network": "endpoint-only", "endpoint": f"http://127.0.0.1:{port}"}
        sandbox_id = service.post(f"{ROCK_BASE}/start_async", {"spec": spec}).json()["result"]["sandbox_id"]
        for there, reached in ((ENDPOINT_PORT, "reached\n"), (port, "")):
            asked = {"sandbox_id": sandbox_id, "command": ["bash", "-c", to.format(there)], "timeout": 20}
            answered = await asyncio.to_thread(service.post, f"{ROCK_BASE}/execute", asked)
            assert answered.json()["result"]["stdout"] == reached, there
        service.post(f"{ROCK_BASE}/delete", {"sandbox_id": sandbox_id})


async def test_files_are_kept_in_images(start: StartSandbox, others: Any) -> None:
    async def made() -> int:
        return len(await kept(others) - before)

    before = await kept(others)
    box = await start(image=IMAGE, auto_delete_seconds=3600)
    await box.write_file_by_path("kept", "/tmp/kept")
    done = await box.commit("rock-test:1", "user", "secret-of-a-registry")
    assert done is not None
    assert (done.phase, done.error_message) == ("SUCCEEDED", None)
    fork = await start(image="rock-test:1")
    assert (await fork.read_file(ReadFileRequest(path="/tmp/kept"))).content == "kept"
    for archive in (False, True):
        await box.stop()
        if archive:
            await box.archive()
        assert box.sandbox_id not in await containers(others)
        await box.restart()
        assert (await box.read_file(ReadFileRequest(path="/tmp/kept"))).content == "kept"
        await box.stop()
    assert await made() == 2, "the image that was committed, and the files of the stopped sandbox"
    await fork.stop()
    for each in (fork, box):
        await each.delete()
    assert await made() == 1


async def test_what_cannot_be_started_is_refused_with_a_sentence(service: Service, start: StartSandbox) -> None:
    (worker,) = service.get(f"{ALE_BASE}/status").json()["workers"]
    assert {IMAGE, WARM_IMAGE} <= set(worker["images"]), "it knows them before it is asked for them"
    with pytest.raises(BadRequestRockError, match=r"cannot be pulled.* does not log in to registries"):
        await start(image="rock.invalid/absent:1", registry_username="anna", registry_password="hunter2-and-more")
    assert "hunter2-and-more" not in service.logs()
    with pytest.raises(BadRequestRockError, match=r"No worker is large enough .* and 1 GPUs"):
        await start(image=IMAGE, num_gpus=1)


async def test_one_that_was_started_ahead_is_as_new(service: Service, start: StartSandbox) -> None:
    async def is_ready() -> bool:
        return bool(service.get(f"{ALE_BASE}/status").json()["workers"][0]["warm"])

    await start(image=WARM_IMAGE)
    await until(is_ready)
    box = await start(image=WARM_IMAGE, memory="256m")
    assert (await box.execute(sh("ls -A; id -un"))).stdout == "agent\n"


async def test_a_container_that_somebody_removes_is_lost_at_once(start: StartSandbox, others: Any) -> None:
    box = await start(image=IMAGE)
    running = asyncio.create_task(box.execute(Command(command="sleep 60")))
    await asyncio.sleep(0.2)
    await others.engine.remove(box.sandbox_id)
    with pytest.raises(Exception, match=f"{box.sandbox_id} is (gone|stopped): its resident process ended"):
        await running

    async def is_lost() -> bool:
        return not (await box.get_status(include_all_states=True)).is_alive

    await until(is_lost, timeout_s=30)  # the worker says it beside its answer, and long before it is asked
    status = await box.get_status(include_all_states=True)
    assert (status.state, status.is_alive, status.state_history[-1].event) == ("stopped", False, "lost")


async def test_a_killed_worker_leaves_no_container_and_another_takes_its_place(
    service: Service, start: StartSandbox, others: Any
) -> None:
    async def own() -> list[FoundContainer]:
        found = await others.engine.containers()
        return [each for each in found if each.labels[OWNER] == owner]

    async def goes_on() -> bool:
        return any(each["alive"] for each in service.get(f"{ALE_BASE}/status").json()["workers"])

    async def are_gone() -> bool:
        return not await own()

    box = await start(image=IMAGE)
    owner = next(each.labels[OWNER] for each in await others.engine.containers() if each.name == box.sandbox_id)
    os.kill(int(owner.partition("-")[0]), signal.SIGKILL)
    await until(are_gone)

    async def is_lost() -> bool:
        return not (await box.get_status(include_all_states=True)).is_alive

    await until(is_lost)
    with pytest.raises(Exception, match="is stopped: The worker "):
        await box.execute(Command(command="true"))
    await until(goes_on)
    assert (await (await start(image=IMAGE)).execute(Command(command="echo on"))).stdout == "on\n"
