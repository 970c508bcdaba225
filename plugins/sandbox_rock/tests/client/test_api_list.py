"""Methods of ROCK's client, and promises of the service, that the other files here leave out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rock.actions import Command, CreateBashSessionRequest, ReadFileRequest
from rock.actions.sandbox.request import BashAction, ChownRequest
from rock.common.constants import PID_PREFIX, PID_SUFFIX
from rock.sdk.common.exceptions import BadRequestRockError, InternalServerRockError
from rock.sdk.sandbox.client import RunMode, Sandbox, UploadMode
from rock.sdk.sandbox.config import SandboxConfig
from service_process import Service, StartSandbox, serving
from support.sandbox_providers import must_answer

pytestmark = [pytest.mark.bwrap, pytest.mark.filterwarnings("ignore:deprecated|Use arun instead")]


async def test_every_byte_of_a_file_comes_back_without_object_storage(start: StartSandbox, tmp_path: Path) -> None:
    """The original's client downloads by object storage alone."""
    box = await start()
    sent = tmp_path / "bytes"
    sent.write_bytes(bytes(range(256)) * 100)
    uploaded = await box.upload_by_path(sent, "/tmp/bytes", UploadMode.DIRECT)
    assert uploaded.success, uploaded.message
    got = await box.read_file(ReadFileRequest(path="/tmp/bytes", encoding="latin-1"))
    assert got.content.encode("latin-1") == sent.read_bytes()
    refused = await box.upload_by_path(sent, "/tmp/bytes", UploadMode.OSS)
    assert (refused.success, "oss" in refused.message) == (False, True)


async def test_a_session_starts_as_its_request_says(start: StartSandbox) -> None:
    box = await start()
    await box.write_file_by_path("export FROM_FILE=1", "/tmp/setup.sh")
    asked = CreateBashSessionRequest(session="s", startup_source=["/tmp/setup.sh"], env={"GIVEN": "2"}, env_enable=True)
    await box.create_session(asked)
    assert (await box.arun("echo $FROM_FILE $GIVEN", session="s")).output.strip() == "1 2"
    with pytest.raises(Exception, match="exists already"):
        await box.create_session(asked)
    with pytest.raises(Exception, match="remote_user"):
        await box.create_session(CreateBashSessionRequest(session="other", remote_user="somebody"))


async def test_a_check_that_is_ignored_has_no_exit_code(start: StartSandbox) -> None:
    box = await start()
    await box.create_session(CreateBashSessionRequest(session="s"))
    done = await box.run_in_session(BashAction(command="echo out; (exit 3)", session="s", check="ignore"))
    assert (done.output.strip(), done.exit_code) == ("out", None)


async def test_a_job_in_the_background_shares_its_session_and_can_be_awaited_apart(start: StartSandbox) -> None:
    box = await start()
    await box.create_session(CreateBashSessionRequest(session="s"))
    await box.arun("cd /tmp; export X=5", session="s")
    done = await box.arun("sh -c 'pwd; echo $X'", session="s", mode=RunMode.NOHUP)
    assert (done.exit_code, done.output.split()) == (0, ["/tmp", "5"])
    pid, failure = await box.start_nohup_process("true", "/tmp/out", "s")
    assert (bool(pid), failure) == (True, None)
    assert (await box.wait_for_process_completion(pid, "s", 30, 5))[0]
    shown = await box.arun(f"sleep 0 & echo {PID_PREFIX}$!{PID_SUFFIX}", session="s")
    number = shown.output.split(PID_PREFIX)[1].split(PID_SUFFIX)[0]
    assert int(number) > 0


async def test_users_of_the_sandbox_are_what_the_machine_lets_them_be(start: StartSandbox) -> None:
    box = await start()
    await box.write_file_by_path("1", "/tmp/own")
    own = await box.fs.chown(ChownRequest(paths=["/tmp/own"], remote_user="agent"))
    assert own.success, own.message
    foreign = await box.fs.chown(ChownRequest(paths=["/tmp/own"], remote_user="root"))
    assert (foreign.success, "exit_code=1" in foreign.message) == (False, True)
    assert await box.remote_user.create_remote_user("agent"), "it exists"
    assert not await box.remote_user.create_remote_user("nobody-made-it")


async def test_a_start_that_finds_no_room_says_at_which_place_it_waited(service: Service, start: StartSandbox) -> None:
    """The original has no queue."""
    (worker,) = service.get("/apis/ale/v1/status").json()["workers"]
    most = round(0.6 * worker["cpus"]["limit"], 2)
    await start(cpus=most)
    with pytest.raises(InternalServerRockError, match="at place 1 of the 1 that wait for room"):
        await start(cpus=most, startup_timeout=0.3)
    with pytest.raises(BadRequestRockError, match="No worker is large enough"):
        await start(cpus=10 * most)


async def test_a_sandbox_that_dies_on_a_live_worker_is_noticed_at_once(start: StartSandbox) -> None:
    """The original goes on calling it alive."""
    from ale.specs.driver import DriverContext
    from ale_local.provider import LocalSandboxConfig, LocalSandboxProvider

    box = await start()
    running = asyncio.create_task(box.execute(Command(command=["sleep", "60"])))
    await LocalSandboxProvider(LocalSandboxConfig(), DriverContext()).remove(box.sandbox_id)
    with pytest.raises(Exception, match="Failed to execute command"):
        await running
    for _ in range(600):
        status = await box.get_status(include_all_states=True)
        if not status.is_alive:
            break
        await asyncio.sleep(0.1)
    assert (status.state, status.state_history[-1].event) == ("stopped", "lost")
    with pytest.raises(Exception, match="Failed to get is alive"):
        await box.is_alive()


async def test_a_client_with_a_token_sees_its_own_sandboxes_alone(tmp_path: Path) -> None:
    """The original asks nobody for a token."""
    must_answer("local")
    tokens = {name: f"token-of-{name}-0123456789" for name in ("anna", "bert")}
    file = tmp_path / "tokens.yaml"
    file.write_text("".join(f"- {{token: {token}, role: user, user: {name}}}\n" for name, token in tokens.items()))
    file.chmod(0o600)
    shown = {"X-API-Key": tokens["anna"]}

    def client(service: Service, headers: dict[str, Any]) -> Sandbox:
        small = {"memory": "256m", "cpus": 0.5, "disk": "64m"}
        return Sandbox(SandboxConfig(base_url=service.url, extra_headers=headers, **small))

    with serving(tmp_path, "--token-file", str(file), headers=shown) as service:
        box = client(service, shown)
        await box.start()
        assert (await box.get_status()).user_id == "anna"
        for headers, why in (({"X-API-Key": tokens["bert"]}, "was not found"), ({}, "needs a token")):
            with pytest.raises(Exception, match=why):
                await client(service, headers).attach(box.sandbox_id)
        with pytest.raises(BadRequestRockError, match="needs a token"):
            await client(service, {}).start()
        await box.stop()
