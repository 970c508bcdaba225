"""Every method of the unmodified client of ROCK, against a whole service with local sandboxes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import pytest
from rock.actions import (
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from rock.actions.sandbox.request import BashAction, ChmodRequest
from rock.sdk.common.exceptions import BadRequestRockError
from rock.sdk.sandbox.client import RunMode, Sandbox, SandboxGroup
from rock.sdk.sandbox.config import SandboxConfig, SandboxGroupConfig
from service_process import Service, StartSandbox

pytestmark = [pytest.mark.bwrap, pytest.mark.slow, pytest.mark.filterwarnings("ignore:deprecated")]


async def test_a_started_sandbox_says_what_it_is(start: StartSandbox) -> None:
    box = await start(user_id="anna", experiment_id="e1", namespace="maths")
    status = await box.get_status()
    assert status.is_alive
    assert (status.sandbox_id, status.state, status.cpus) == (box.sandbox_id, "running", 0.5)
    assert (status.user_id, status.experiment_id, status.namespace) == ("anna", "e1", "maths")
    assert [(change.from_state, change.to_state) for change in status.state_history][-1] == ("pending", "running")
    assert {name: phase["status"] for name, phase in status.status.items()} == {
        "image_pull": "success",
        "docker_run": "success",
    }
    assert status.host_name
    assert box.host_ip == status.host_ip
    assert (await box.is_alive()).is_alive


async def test_another_client_attaches_to_a_sandbox(service: Service, start: StartSandbox) -> None:
    box = await start()
    await box.execute(Command(command=["sh", "-c", "echo here > mark"]))
    other = Sandbox(SandboxConfig(base_url=service.url))
    await other.attach(box.sandbox_id)
    assert other.config.memory == "256m"
    assert (await other.execute(Command(command="cat mark"))).stdout == "here\n"
    with pytest.raises(Exception, match="no-such-sandbox"):
        await Sandbox(SandboxConfig(base_url=service.url)).attach("no-such-sandbox")


async def test_a_stopped_sandbox_is_no_longer_alive_and_a_deleted_one_is_gone(start: StartSandbox) -> None:
    box = await start()
    await box.stop()
    with pytest.raises(Exception, match="not found"):
        await box.get_status()
    stopped = await box.get_status(include_all_states=True)
    assert (stopped.state, stopped.is_alive) == ("stopped", False)
    with pytest.raises(Exception, match="stopped"):
        await box.execute(Command(command="true"))
    await box.delete()
    assert (await box.get_status(include_all_states=True)).state == "deleted"


async def test_closing_a_sandbox_stops_it(start: StartSandbox) -> None:
    box = await start()
    await box.close()
    assert (await box.get_status(include_all_states=True)).state == "stopped"


async def test_a_session_keeps_folder_variables_and_functions(start: StartSandbox) -> None:
    box = await start()
    await box.create_session(CreateBashSessionRequest(session="s", env={"GIVEN": "a b"}))
    assert (await box.arun("cd /tmp; x=5; f() { echo f:$1; }", session="s")).exit_code == 0
    done = await box.arun('pwd; echo "$x $GIVEN"; f 7', session="s")
    assert done.output.split("\n")[:3] == ["/tmp", "5 a b", "f:7"]
    assert done.exit_code == 0
    await box.close_session(CloseBashSessionRequest(session="s"))
    with pytest.raises(Exception, match="no session 's'"):
        await box.arun("true", session="s")


async def test_a_failed_command_is_an_error_or_a_result_as_the_client_asks(start: StartSandbox) -> None:
    box = await start()
    await box.create_session(CreateBashSessionRequest(session="s"))
    with pytest.raises(Exception, match="Failed to execute command"):
        await box.arun("echo why >&2; false", session="s")
    with pytest.warns(DeprecationWarning, match="Use arun"):
        quiet = await box.run_in_session(BashAction(command="echo why >&2; (exit 3)", session="s", check="silent"))
    assert (quiet.exit_code, quiet.output.strip()) == (3, "why")


async def test_a_command_without_a_session_gets_one(start: StartSandbox) -> None:
    box = await start()
    assert (await box.arun("echo once")).output.strip() == "once"


async def test_a_job_in_the_background_hands_back_its_output(start: StartSandbox) -> None:
    box = await start()
    done = await box.arun("sh -c 'echo out; echo err >&2'", mode=RunMode.NOHUP)
    assert (done.exit_code, sorted(done.output.split())) == (0, ["err", "out"])
    first = await box.arun("seq 1000", mode=RunMode.NOHUP, response_limited_bytes_in_nohup=5)
    assert first.output.startswith("1\n2\n3")
    hidden = await box.arun("seq 3", mode=RunMode.NOHUP, ignore_output=True, output_file="/tmp/kept.txt")
    assert (hidden.exit_code, "File size: 6 bytes" in hidden.output) == (0, True)
    assert (await box.read_file(ReadFileRequest(path="/tmp/kept.txt"))).content == "1\n2\n3\n"


async def test_a_job_in_the_background_is_waited_for_without_its_output(start: StartSandbox) -> None:
    box = await start()
    with pytest.warns(DeprecationWarning, match="Use arun"):
        done = await box.run_nohup_and_wait("sh -c 'echo out'", redirect_file_path="/tmp/kept")
    assert done.success, done.message
    assert (await box.read_file(ReadFileRequest(path="/tmp/kept"))).content == "out\n"
    with pytest.warns(DeprecationWarning, match="Use arun"):
        failed = await box.run_nohup_and_wait("sh -c 'echo why; exit 3'")
    assert failed.success, "as on ROCK, whose client cannot know how a job ended"


async def test_a_program_runs_without_a_shell(start: StartSandbox) -> None:
    box = await start()
    done = await box.execute(Command(command=["printf", "%s|", "a b", "$HOME", "*"]))
    assert (done.exit_code, done.stdout) == (0, "a b|$HOME|*|")
    words = ["sh", "-c", "pwd; echo $X; echo e >&2; exit 7"]
    done = await box.execute(Command(command=words, cwd="/tmp", env={"X": "1"}))
    assert (done.exit_code, done.stdout, done.stderr) == (7, "/tmp\n1\n", "e\n")


async def test_files_are_the_same_after_writing_and_reading(start: StartSandbox, tmp_path: Path) -> None:
    box = await start()
    text = "größe ✓\n\ttab\r\n"
    assert (await box.write_file(WriteFileRequest(content=text, path="/tmp/deep/er/file"))).success
    assert (await box.read_file(ReadFileRequest(path="/tmp/deep/er/file"))).content == text
    sent = tmp_path / "every byte"
    sent.write_bytes(bytes(range(256)) * 4096)
    uploaded = await box.upload(UploadRequest(source_path=str(sent), target_path="/tmp/up/every byte"))
    assert uploaded.success, uploaded.message
    counted = await box.execute(Command(command=["md5sum", "/tmp/up/every byte"]))
    here = await asyncio.create_subprocess_exec("md5sum", str(sent), stdout=asyncio.subprocess.PIPE)
    assert counted.stdout.split()[0] == (await here.communicate())[0].decode().split()[0]
    with pytest.warns(DeprecationWarning, match="cannot guarantee"):
        part = await box.read_file_by_line_range("/tmp/deep/er/file", 1, 1)
    assert part.content == "größe ✓\n"


async def test_helpers_that_the_client_builds_of_these_work(start: StartSandbox, tmp_path: Path) -> None:
    box = await start()
    script = await box.process.execute_script("echo from a script; exit 0")
    assert (script.exit_code, script.output.strip()) == (0, "from a script")
    (tmp_path / "tree/in").mkdir(parents=True)
    (tmp_path / "tree/in/file").write_text("1")
    sent = await box.fs.upload_dir(tmp_path / "tree", "/tmp/tree")
    assert sent.exit_code == 0, sent.failure_reason
    assert (await box.fs.chmod(ChmodRequest(paths=["/tmp/tree"], mode="700", recursive=True))).success
    assert (await box.execute(Command(command="stat -c %a /tmp/tree/in"))).stdout == "700\n"
    assert await box.remote_user.is_user_exist("agent")
    assert await box.deploy.deploy_working_dir(str(tmp_path / "tree")) is not None


async def test_a_group_of_sandboxes_starts_and_stops(service: Service) -> None:
    group = SandboxGroup(SandboxGroupConfig(base_url=service.url, size=3, memory="256m", cpus=0.5, disk="64m"))
    await group.start()
    done = await asyncio.gather(*(box.execute(Command(command="echo on")) for box in group.sandbox_list))
    assert [each.stdout for each in done] == ["on\n"] * 3
    assert len({box.sandbox_id for box in group.sandbox_list}) == 3
    await group.stop()
    states = [await box.get_status(include_all_states=True) for box in group.sandbox_list]
    assert [each.state for each in states] == ["stopped"] * 3


async def test_starting_an_id_again_gives_the_same_sandbox_and_another_spec_is_refused(start: StartSandbox) -> None:
    sandbox_id = f"once-{os.getpid()}"
    first = await start(sandbox_id=sandbox_id)
    await first.write_file_by_path("1", "/tmp/mark")
    again = await start(sandbox_id=sandbox_id)
    assert (await again.read_file(ReadFileRequest(path="/tmp/mark"))).content == "1"
    with pytest.raises(BadRequestRockError, match=sandbox_id):
        await start(sandbox_id=sandbox_id, memory="128m")


async def test_unknown_fields_are_ignored_and_wrong_ones_are_a_failure_with_status_200(service: Service) -> None:
    base = f"{service.url}/apis/envs/sandbox/v1"
    async with httpx.AsyncClient(timeout=60) as client:
        wrong = await client.post(f"{base}/start_async", json={"cpus": "many"})
        assert (wrong.status_code, wrong.json()["status"]) == (200, "Failed")
        assert (wrong.json()["message"], wrong.json()["result"]["code"]) == ("invalid parameter", 4000)
        token = await client.get(f"{base}/get_token?account=primary")
        assert (token.status_code, token.json()["result"]) == (200, None)
