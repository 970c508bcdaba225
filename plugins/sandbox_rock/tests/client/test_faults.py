"""What ROCK 1.11.0 does wrong (rock's own service, with this same client) and this service does right."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from rock.actions import BashAction, Command, CreateBashSessionRequest, ReadFileRequest, UploadRequest, WriteFileRequest
from rock.sdk.sandbox.client import RunMode
from service_process import Service, StartSandbox

pytestmark = [pytest.mark.bwrap, pytest.mark.slow, pytest.mark.filterwarnings("ignore:deprecated|Use arun instead")]
MARKER = "SHELLPS1PREFIX"
"""The prompt of the original's sessions, by which it finds the end of a command's output."""


async def in_session(box: Any, command: str, timeout: float | None = None) -> Any:
    """Run a command in the session `s`; an exit code other than 0 is a result."""
    return await box.run_in_session(BashAction(command=command, session="s", check="silent", timeout=timeout))


@pytest.fixture
async def box(start: StartSandbox) -> Any:
    """A sandbox with a session `s`."""
    started = await start()
    await started.create_session(CreateBashSessionRequest(session="s"))
    return started


async def test_a_job_in_the_background_keeps_its_exit_code_for_who_asks(start: StartSandbox) -> None:
    """The original reports 0, as this service does to who does not ask."""
    box = await start(extra_headers={"X-Job-Exit-Codes": "true"})
    done = await box.arun("sh -c 'echo why; exit 3'", mode=RunMode.NOHUP)
    assert done.exit_code == 3
    assert "why" in done.output + done.failure_reason
    late = await box.arun("sh -c 'sleep 2; echo why; exit 3'", mode=RunMode.NOHUP)
    assert late.exit_code != 0
    assert "exit code 3" in late.failure_reason


async def test_a_short_job_in_the_background_is_noticed_without_a_wait(
    box: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original finds it running, and looks again after five seconds."""

    whole = asyncio.sleep

    async def sleep(seconds: float) -> None:
        assert seconds < 1, f"the client has to wait {seconds} s for a job of 0.2 s"
        await whole(seconds)

    monkeypatch.setattr("rock.sdk.sandbox.client.asyncio.sleep", sleep)
    done = await box.arun("sleep 0.2", mode=RunMode.NOHUP)
    assert done.exit_code == 0, done.failure_reason


async def test_jobs_that_end_just_when_nobody_waits_for_them_any_more_are_noticed(start: StartSandbox) -> None:
    """A shell whose `wait` is interrupted then may keep such a job as a zombie, which `kill -0` finds for ever."""
    box = await start(extra_headers={"X-Job-Exit-Codes": "true"})
    jobs = [
        box.arun(f"sh -c 'sleep {0.9 + 0.05 * n}; exit 3'", mode=RunMode.NOHUP, wait_timeout=60, wait_interval=5)
        for n in range(8)
    ]
    for done in await asyncio.gather(*jobs):
        assert done.exit_code in (1, 3)
        assert "exit code 3" in done.failure_reason


async def test_late_output_after_a_time_out_belongs_to_no_later_command(box: Any) -> None:
    """The original returns it as the next command's output. Its client waits for an answer as long as the command may
    take, so the answer to a command that takes all of its time has begun before."""
    began = time.monotonic()
    cut = await in_session(box, "echo early; sleep 4; echo late", timeout=2)
    assert time.monotonic() - began >= 2
    assert (cut.exit_code, "early" in cut.output, "late" in cut.output) == (124, True, False)
    assert (await in_session(box, "echo mine; sleep 3; echo more")).output.split() == ["mine", "more"]


async def test_exit_gives_its_code_and_the_session_goes_on(box: Any) -> None:
    """The original's session hangs from then on."""
    await in_session(box, "cd /tmp; x=5")
    assert (await in_session(box, "exit 7")).exit_code == 7
    after = await in_session(box, "pwd; echo $x")
    assert after.output.split() == ["/tmp", "5"]


async def test_the_prompts_marker_in_output_is_output(box: Any) -> None:
    """The original cuts there."""
    done = await in_session(box, f"echo a{MARKER}b; echo after; PS1=mine; echo $PS1")
    assert done.output.split() == [f"a{MARKER}b", "after", "mine"]


async def test_a_failed_upload_or_write_is_a_failure(box: Any, tmp_path: Path) -> None:
    """The original calls both a success."""
    (tmp_path / "file").write_text("1")
    for target in ("/proc/no/such", "/usr/file"):
        sent = await box.upload(UploadRequest(source_path=str(tmp_path / "file"), target_path=target))
        assert not sent.success
        assert target in sent.message
        written = await box.write_file(WriteFileRequest(content="1", path=target))
        assert not written.success
        assert target in written.message


async def test_a_missing_file_is_no_empty_text(box: Any) -> None:
    """The original returns an empty text. The client looks for `content` in the error, which has none."""
    with pytest.raises(KeyError, match="content"):
        await box.read_file(ReadFileRequest(path="/tmp/missing"))


async def test_a_sandbox_without_a_network_reaches_nothing(box: Any, service: Service) -> None:
    """The original has no control of what a sandbox reaches."""
    port = service.url.rpartition(":")[2]
    done = await box.execute(Command(command=["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"]))
    assert done.exit_code != 0


async def test_passwords_are_neither_in_the_log_nor_in_the_database(service: Service, start: StartSandbox) -> None:
    """The original's access log has them."""
    secret = "hunter2-of-a-registry"
    box = await start(registry_username="anna", registry_password=secret)
    await box.stop()
    kept = "".join(
        f"{row}" for row in sqlite3.connect(service.folder / "ale-rock.sqlite").execute("SELECT * FROM sandboxes")
    )
    assert box.sandbox_id in kept
    assert secret not in kept
    assert all(secret not in file.read_text(errors="replace") for file in service.folder.iterdir() if file.is_file())
