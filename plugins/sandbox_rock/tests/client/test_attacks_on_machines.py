"""What a user of the service tries against the machine of a worker: its files, its ports, its sockets. With a whole
service and local sandboxes; the files and listeners of the machine are those of this test."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from attack_tools import TOKENS, sentence_of, shown
from service_process import Service, serving
from support.sandbox_providers import must_answer

from ale.specs.sandbox import ENDPOINT_PORT
from ale_rock.schemas import ALE_BASE, ROCK_BASE

pytestmark = [pytest.mark.bwrap, pytest.mark.slow]
SMALL = {"image": "python:3.11", "memory": "256m", "cpus": 0.5}
FORM = b'--b\r\nContent-Disposition: form-data; name="sandbox_id"\r\n\r\n%s\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n'
TARGET = b'--b\r\nContent-Disposition: form-data; name="target_path"\r\n\r\n/tmp/x\r\n'
BROKEN_FORMS = {
    "cut short": FORM + TARGET + FILE,
    "no file": FORM + TARGET + b"--b--\r\n",
    "no target": FORM + FILE + b"--b--\r\n",
    "two files": FORM + TARGET + FILE + FILE + b"--b--\r\n",
    "many parts": FORM + TARGET * 1000 + FILE + b"--b--\r\n",
    "a long header": FORM + b"--b\r\nX-Long: " + b"x" * 1_000_000 + b"\r\n\r\nx\r\n--b--\r\n",
    "a long field": FORM + TARGET.replace(b"/tmp/x", b"/x" * 100_000) + FILE + b"--b--\r\n",
    "no boundary": b"%s x",
    "a target of two lines": FORM + TARGET.replace(b"/tmp/x", b"/tmp/\x00x") + FILE + b"--b--\r\n",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with tokens and local sandboxes."""
    must_answer("local")
    folder = tmp_path_factory.mktemp("attacked")
    tokens = folder / "tokens.yaml"
    tokens.write_text(
        json.dumps(
            [
                {"token": TOKENS["admin"], "role": "admin"},
                {"token": TOKENS["bert"], "role": "user", "user": "bert"},
            ]
        )
    )
    tokens.chmod(0o600)
    with serving(folder, "--token-file", str(tokens), headers=shown("admin")) as running:
        yield running


@pytest.fixture
async def bert(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """A user of it."""
    async with httpx.AsyncClient(base_url=service.url, headers=shown("bert"), timeout=60) as http:
        yield http
    for sandbox_id in service.sandboxes():
        service.post(f"{ROCK_BASE}/delete", {"sandbox_id": sandbox_id})


async def rock(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    """Send a request that must succeed."""
    envelope = (await http.post(ROCK_BASE + path, json=body)).json()
    assert envelope["status"] == "Success", envelope
    return envelope["result"]


async def start(http: httpx.AsyncClient, **asked: Any) -> str:
    """Start a sandbox."""
    started: str = (await rock(http, "/start_async", **{**SMALL, **asked}))["sandbox_id"]
    return started


@asynccontextmanager
async def listening(host: str = "127.0.0.1") -> AsyncIterator[tuple[int, list[bytes]]]:
    """Listen at a port of this machine; yield it, and what was sent to it."""
    heard: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(b"")
        heard[-1] += await reader.readline()
        writer.close()

    server = await asyncio.start_server(take, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


async def test_paths_into_the_machine_write_and_read_nothing_there(bert: httpx.AsyncClient, tmp_path: Path) -> None:
    secret, target = tmp_path / "secret", tmp_path / "written"
    secret.write_text("s3cret")
    os.chmod(tmp_path, 0o777)  # only isolation keeps others out
    sandbox_id = await start(bert)
    files = f"{ALE_BASE}/sandboxes/{sandbox_id}/files"
    ups = "../" * 30
    link = {"command": ["sh", "-c", f"ln -s {tmp_path} /tmp/link; ln -s {secret} /tmp/secret; ls /proc/1/root"]}
    await rock(bert, "/execute", sandbox_id=sandbox_id, **link)
    places = ["", ups, "/proc/1/root", "/proc/self/root", "/proc/self/cwd/" + ups, "/tmp/link/" + ups]
    for place in places:
        path = f"{place}{target}"
        await bert.post(f"{ROCK_BASE}/write_file", json={"sandbox_id": sandbox_id, "path": path, "content": "x"})
        await bert.put(files, params={"path": path}, content=b"x")
        form = {"sandbox_id": sandbox_id, "target_path": path}
        await bert.post(f"{ROCK_BASE}/upload", data=form, files={"file": ("../../x", b"x")})
        path = f"{place}{secret}"
        read = await bert.post(f"{ROCK_BASE}/read_file", json={"sandbox_id": sandbox_id, "path": path})
        got = await bert.get(files, params={"path": path})
        assert "s3cret" not in read.text + got.text
    for path in ("/tmp/secret", "/tmp/link/secret"):
        assert "s3cret" not in (await bert.get(files, params={"path": path})).text
    assert not target.exists()
    assert secret.read_text() == "s3cret"
    assert os.listdir(tmp_path) == ["secret"]


@pytest.mark.parametrize("path", ["../escaped", "/etc/escaped", "a/../../escaped", "", ".", "a\0b"])
async def test_files_of_a_new_sandbox_stay_in_its_work_folder(bert: httpx.AsyncClient, path: str) -> None:
    asked = {"spec": {"files": {path: "eA=="}}}
    answer = await bert.post(f"{ROCK_BASE}/start_async", json=asked)
    assert answer.json()["status"] == "Failed", answer.text
    assert sentence_of(answer)


@pytest.mark.parametrize("workdir", ["../x", "/proc/1/root/x", "/..", "a\0b"])
async def test_a_work_folder_is_a_folder_of_the_sandbox(bert: httpx.AsyncClient, workdir: str, tmp_path: Path) -> None:
    answer = (await bert.post(f"{ROCK_BASE}/start_async", json={"spec": {"workdir": workdir}})).json()
    if answer["status"] == "Success":
        done = await rock(bert, "/execute", sandbox_id=answer["result"]["sandbox_id"], command=["ls", str(tmp_path)])
        assert done["exit_code"] != 0
    else:
        assert len(answer["message"]) > 10


@pytest.mark.parametrize("what", BROKEN_FORMS)
async def test_a_broken_form_writes_nothing(bert: httpx.AsyncClient, what: str) -> None:
    sandbox_id = await start(bert)
    kind = {"Content-Type": "multipart/form-data" + ("" if what == "no boundary" else "; boundary=b")}
    body = BROKEN_FORMS[what] % sandbox_id.encode()
    assert sentence_of(await bert.post(f"{ROCK_BASE}/upload", content=body, headers=kind))
    done = await rock(bert, "/execute", sandbox_id=sandbox_id, command=["ls", "/tmp/x"])
    assert done["exit_code"] != 0


async def test_a_sandbox_without_network_reaches_no_port_of_the_machine(bert: httpx.AsyncClient) -> None:
    async with listening("0.0.0.0") as (port, heard):
        sandbox_id = await start(bert, network="none")
        outside = socket.gethostbyname(socket.gethostname())
        for host in ("127.0.0.1", outside, "0.0.0.0", "169.254.169.254"):
            command = ["bash", "-c", f"timeout 2 bash -c 'echo out > /dev/tcp/{host}/{port}'"]
            done = await rock(bert, "/execute", sandbox_id=sandbox_id, command=command, timeout=20)
            assert done["exit_code"] != 0, host
        assert not heard


async def test_a_sandbox_with_an_endpoint_reaches_that_and_nothing_else(service: Service) -> None:
    async with (
        listening() as (model, asked),
        listening("0.0.0.0") as (port, heard),
        httpx.AsyncClient(base_url=service.url, headers=shown("admin"), timeout=60) as http,
    ):
        spec = {"network": "endpoint-only", "endpoint": f"http://127.0.0.1:{model}", "resources": {"memory_mib": 256}}
        sandbox_id = (await rock(http, "/start_async", spec=spec))["sandbox_id"]
        to_model = ["bash", "-c", f"echo to the model > /dev/tcp/127.0.0.1/{ENDPOINT_PORT}"]
        assert (await rock(http, "/execute", sandbox_id=sandbox_id, command=to_model))["exit_code"] == 0
        for host in ("127.0.0.1", socket.gethostbyname(socket.gethostname()), "169.254.169.254"):
            command = ["bash", "-c", f"timeout 2 bash -c 'echo out > /dev/tcp/{host}/{port}'"]
            done = await rock(http, "/execute", sandbox_id=sandbox_id, command=command, timeout=20)
            assert done["exit_code"] != 0, host
        assert not heard
        assert asked == [b"to the model\n"]
        await rock(http, "/stop", sandbox_id=sandbox_id)


async def test_a_user_reaches_no_socket_of_the_machine_by_calling_it_the_model_endpoint(
    bert: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with listening() as (port, heard):
        for network in ("endpoint-only", "full"):
            spec = {"network": network, "endpoint": f"http://127.0.0.1:{port}", "resources": {"memory_mib": 256}}
            answer = (await bert.post(f"{ROCK_BASE}/start_async", json={"spec": spec})).json()
            if answer["status"] == "Success":
                command = ["bash", "-c", f"timeout 2 bash -c 'echo out > /dev/tcp/127.0.0.1/{ENDPOINT_PORT}'"]
                await rock(bert, "/execute", sandbox_id=answer["result"]["sandbox_id"], command=command)
                await asyncio.sleep(0.2)
            assert not heard
            assert "endpoint" in answer["message"]


@pytest.mark.parametrize("network", ["full", "allow"])
async def test_a_user_with_a_network_reaches_no_port_of_the_machine(bert: httpx.AsyncClient, network: str) -> None:
    async with listening("0.0.0.0") as (port, heard):
        outside = socket.gethostbyname(socket.gethostname())
        hosts = ["127.0.0.1", "localhost", outside, "0.0.0.0", "127.1"]
        for host in hosts:
            asked = {**SMALL, "network": network}
            if network == "allow":
                asked["allow"] = [f"{host}:{port}"]
            answer = (await bert.post(f"{ROCK_BASE}/start_async", json=asked)).json()
            if answer["status"] == "Success":
                command = ["bash", "-c", f"timeout 2 bash -c 'echo out > /dev/tcp/{host}/{port}'"]
                await rock(bert, "/execute", sandbox_id=answer["result"]["sandbox_id"], command=command, timeout=20)
                await asyncio.sleep(0.1)
            assert not heard, host
