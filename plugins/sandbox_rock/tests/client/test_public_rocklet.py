"""ROCK's own rocklet 1.11.0 has the faults that `test_faults` shows this service without: the same client asks both.

In ROCK an admin stands between them. Here that is `admin_of`, which passes requests on and puts answers into envelopes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from rock.actions import BashAction, CreateBashSessionRequest
from rock.sdk.sandbox.client import RunMode, Sandbox
from rock.sdk.sandbox.config import SandboxConfig
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from support.ports import held_port

from ale_rock.http.server import listener_at, serving, url_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:deprecated|Use arun instead|.*websockets")]
MARKER = "SHELLPS1PREFIX"
START_S = 120
ROCKLET = [sys.executable, "-m", "rock.rocklet.server", "--host", "127.0.0.1", "--port"]
"""By default it listens at 0.0.0.0, where whoever reaches the machine can run commands."""


@pytest.fixture(scope="module")
def rocklet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, psutil.Process]]:
    """Run a rocklet; yields its URL and its process."""
    folder = tmp_path_factory.mktemp("rocklet")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}  # a shell that reads nobody's files
    with held_port() as port, (folder / "log").open("wb") as log:
        url, command = f"http://127.0.0.1:{port}", ["setpriv", "--pdeathsig", "KILL", *ROCKLET, str(port)]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/is_alive")
                break
            time.sleep(0.05)
    assert process.poll() is None, (folder / "log").read_text()
    found = psutil.Process(process.pid)
    yield url, found
    shells = found.children(recursive=True)
    process.kill()
    process.wait()
    for shell in shells:
        with contextlib.suppress(psutil.NoSuchProcess):
            shell.kill()


def admin_of(url: str) -> Starlette:
    """Return what stands between client and rocklet."""

    async def pass_on(request: Request) -> JSONResponse:
        if request.method == "GET":
            return answer({"sandbox_id": "any", "is_alive": True, "status": {}, "state": "running"})
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            done = await http.post(f"/{request.path_params['what']}", json=await request.json())
        return answer(done.json()) if done.status_code == 200 else answer(None, done.text)

    def answer(result: Any, error: str | None = None) -> JSONResponse:
        status = "Success" if error is None else "Failed"
        return JSONResponse({"status": status, "message": error, "error": error, "result": result})

    return Starlette(routes=[Route("/apis/envs/sandbox/v1/{what}", pass_on, methods=["GET", "POST"])])


@pytest.fixture
async def box(rocklet: tuple[str, psutil.Process]) -> AsyncIterator[Sandbox]:
    """The client's sandbox, whose rocklet is the original."""
    listener = listener_at("127.0.0.1", 0)
    async with serving(admin_of(rocklet[0]), listener):
        box = Sandbox(SandboxConfig(base_url=url_of(listener)))
        await box.attach("any")
        yield box


async def in_session(box: Sandbox, session: str, command: str) -> Any:
    """Run a command in a session."""
    return await box.run_in_session(BashAction(command=command, session=session, check="silent", timeout=60))


async def test_a_job_in_the_background_is_noticed_late_and_loses_its_exit_code(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, waits = asyncio.sleep, []

    async def sleep(seconds: float) -> None:
        if seconds >= 1:  # the client's, which has found the job running
            waits.append(seconds)
            (tmp_path / "end").touch()
        await whole(min(seconds, 0.05))

    monkeypatch.setattr("rock.sdk.sandbox.client.asyncio.sleep", sleep)
    job = f"while ! test -e {tmp_path}/end; do sleep 0.02; done; exit 3"
    done = await box.arun(f"sh -c '{job}'", mode=RunMode.NOHUP)
    assert done.exit_code == 0
    assert min(waits) >= 5


async def test_late_output_is_the_next_commands(box: Sandbox, rocklet: tuple[str, psutil.Process]) -> None:
    await box.create_session(CreateBashSessionRequest(session="late"))
    late = BashAction(command="sleep 3; echo late", session="late", check="silent", timeout=1)
    async with httpx.AsyncClient(timeout=60) as http:  # ROCK's client would hang up at the same moment
        done = await http.post(f"{rocklet[0]}/run_in_session", json={"sandbox_id": "any", **late.model_dump()})
    assert done.status_code == 504
    assert "late" in (await in_session(box, "late", "echo mine")).output


async def test_exit_ends_the_session(box: Sandbox) -> None:
    await box.create_session(CreateBashSessionRequest(session="exit"))
    for command in ("exit 7", "echo after"):
        with pytest.raises(Exception, match="Failed to execute command"):
            await in_session(box, "exit", command)


async def test_output_loses_what_looks_like_the_prompts_marker(box: Sandbox) -> None:
    await box.create_session(CreateBashSessionRequest(session="marker"))
    output = (await in_session(box, "marker", f"echo a{MARKER}b; echo after")).output
    assert output.startswith("a")  # what comes after it is lost or not, as it was read with it or not
    assert "b" not in output


def test_nobody_is_asked_for_a_token(rocklet: tuple[str, psutil.Process]) -> None:
    done = httpx.post(f"{rocklet[0]}/execute", json={"sandbox_id": "any", "command": ["echo", "anybody"]})
    assert done.json()["stdout"] == "anybody\n"
