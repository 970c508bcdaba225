"""Background jobs, as ROCK's client starts and watches them: it gets what ROCK's own server answers, or, if it asks for
it, the jobs' exit codes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from ale_rock.worker.nohup import find_job
from ale_rock.worker.session import Session

from .conftest import Body, Worker

pytestmark = pytest.mark.bwrap


async def run(worker: Worker, box: str, command: str, **asked: Any) -> Body:
    """What the client sends, which is always `check: raise`."""
    action = {"session": "s", "command": command, "check": "raise", "timeout": 30, **asked}
    return await worker.envelope(box, "run_in_session", **action)


async def start(worker: Worker, box: str, job: str, **asked: Any) -> Any:
    """Start a job with the client's own line; its result."""
    line = f"nohup {job} < /dev/null > /tmp/job.out 2>&1 & echo PIDSTART${{!}}PIDEND;disown"
    envelope = await run(worker, box, line, **asked)
    assert envelope["status"] == "Success", envelope
    return envelope["result"]


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("nohup ls < /dev/null > /tmp/a.out 2>&1 & echo PIDSTART${!}PIDEND;disown", "/tmp/a.out"),
        ("nohup ls < /dev/null > 'a b' 2>&1 & echo PIDSTART${!}PIDEND ; disown\n", "'a b'"),
        ("nohup a < /dev/null > b; c < /dev/null > d 2>&1 & echo PIDSTART${!}PIDEND; disown", "d"),
        ("nohup ls > /tmp/a.out 2>&1 & echo PIDSTART${!}PIDEND;disown", None),
        ("ls < /dev/null > /tmp/a.out 2>&1 & echo PIDSTART${!}PIDEND;disown", None),
        ("nohup ls < /dev/null > /tmp/a.out 2>&1 & echo PIDSTART${!}PIDEND", None),
        ("nohup " + " < /dev/null > " * 200_000 + ";disown", None),
    ],
)
def test_a_job_is_known_by_its_line(line: str, file: str | None) -> None:
    found = find_job(line)
    assert (found and found[1]) == file
    assert found is None or found[0].endswith("PIDEND")


def pid_of(started: Body) -> str:
    found = re.search(r"PIDSTART([0-9]+)PIDEND", started["output"])
    assert found, started
    return found[1]


async def ended(worker: Worker, box: str, pid: str) -> None:
    """Ask as the client does until the job has ended."""
    for _ in range(100):
        if (await run(worker, box, f"kill -0 {pid}"))["status"] == "Failed":
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"the job {pid} did not end")


async def test_a_job_that_fails_at_once_is_answered_as_on_rock_with_its_exit_code_beside(
    worker: Worker, box: str
) -> None:
    done = await start(worker, box, "bash -c 'echo wrong; exit 3'")
    assert (done["exit_code"], done["failure_reason"], done["job_exit_code"]) == (0, "", 3)
    assert (await run(worker, box, f"kill -0 {pid_of(done)}"))["status"] == "Failed"
    read = (await run(worker, box, "cat /tmp/job.out"))["result"]
    assert (read["output"], read["exit_code"], read["job_exit_code"]) == ("wrong", 0, 3)


async def test_a_job_that_fails_at_once_is_the_result_of_its_start_if_that_is_asked_for(
    worker: Worker, box: str
) -> None:
    done = await start(worker, box, "bash -c 'echo wrong; exit 3'", job_exit_codes=True)
    assert (done["exit_code"], done["output"]) == (3, "wrong")
    assert "exit code 3" in done["failure_reason"]
    again = await run(worker, box, "cat /tmp/job.out", job_exit_codes=True)
    assert again["result"]["output"] == "wrong", "it is reported once"


async def test_a_header_asks_for_the_exit_codes_of_a_client_that_cannot_send_more_fields(
    worker: Worker, box: str
) -> None:
    worker.client.headers["X-Job-Exit-Codes"] = "true"
    assert (await start(worker, box, "bash -c 'exit 3'"))["exit_code"] == 3


async def test_a_job_that_ended_during_a_look_that_took_long_is_looked_at_again(
    worker: Worker, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Session._job_runs

    async def look_slowly(session: Session, pid: str) -> bool:
        runs = await look(session, pid)
        await asyncio.sleep(1.5)
        return runs

    monkeypatch.setattr(Session, "_job_runs", look_slowly)
    assert (await start(worker, box, "bash -c 'sleep 0.5; exit 3'"))["job_exit_code"] == 3


async def test_a_short_job_that_succeeds_has_ended_when_the_client_first_asks(worker: Worker, box: str) -> None:
    started = await start(worker, box, "bash -c 'sleep 0.2; echo fine'")
    assert started["exit_code"] == 0
    assert (await run(worker, box, f"kill -0 {pid_of(started)}"))["status"] == "Failed"
    assert (await run(worker, box, "cat /tmp/job.out"))["result"]["output"] == "fine"


@pytest.mark.parametrize("read", ["cat /tmp/job.out", "head -c 1000 /tmp/job.out"])
@pytest.mark.parametrize("reported", [False, True])
async def test_a_job_that_fails_later_is_reported_when_its_output_is_read(
    worker: Worker, box: str, read: str, reported: bool
) -> None:
    started = await start(worker, box, "bash -c 'until [ -e /tmp/go ]; do sleep 0.1; done; echo wrong; exit 3'")
    assert (started["exit_code"], started["job_exit_code"]) == (0, None)
    assert (await run(worker, box, f"kill -0 {pid_of(started)}"))["status"] == "Success"
    await run(worker, box, "touch /tmp/go")
    await ended(worker, box, pid_of(started))
    envelope = await run(worker, box, read, job_exit_codes=reported)
    if reported:
        assert envelope["status"] == "Failed"
        assert f"The background job {pid_of(started)} ended with exit code 3. Its output:\nwrong" == envelope["error"]
    else:
        assert (envelope["result"]["exit_code"], envelope["result"]["job_exit_code"]) == (0, 3)
        assert envelope["result"]["output"] == "wrong"
    assert (await run(worker, box, read))["result"]["output"] == "wrong"


async def test_a_killed_job_writes_nothing_into_the_session(worker: Worker, box: str) -> None:
    started = await start(worker, box, "sleep 4323")
    assert (await run(worker, box, f"kill -9 {pid_of(started)}"))["status"] == "Success"
    await ended(worker, box, pid_of(started))
    assert (await run(worker, box, "echo clean"))["result"]["output"] == "clean"
    assert (await run(worker, box, "cat /tmp/job.out"))["result"]["job_exit_code"] == 137


async def test_the_exit_code_of_a_job_is_not_that_of_an_earlier_one_with_the_same_file(
    worker: Worker, box: str
) -> None:
    await start(worker, box, "bash -c 'exit 3'")
    started = await start(worker, box, "bash -c 'until [ -e /tmp/go ]; do sleep 0.1; done'")
    assert (await run(worker, box, "cat /tmp/job.out"))["result"]["job_exit_code"] is None
    await run(worker, box, "touch /tmp/go")
    await ended(worker, box, pid_of(started))
    assert (await run(worker, box, "cat /tmp/job.out"))["result"]["job_exit_code"] == 0


async def test_a_job_outlives_its_session(worker: Worker, box: str) -> None:
    await start(worker, box, "sleep 4324")
    await worker.act(box, "close_session", session="s")
    left = await worker.act(box, "execute", command=["sh", "-c", "ps -ef | grep -c '[s]leep 4324'"])
    assert left["stdout"] == "1\n"


async def test_a_job_survives_an_exit_of_its_session(worker: Worker, box: str) -> None:
    started = await start(worker, box, "bash -c 'until [ -e /tmp/go ]; do sleep 0.1; done; echo fine'")
    await run(worker, box, "exit 4")
    assert (await run(worker, box, f"kill -0 {pid_of(started)}"))["status"] == "Success"
    await run(worker, box, "touch /tmp/go")
    await ended(worker, box, pid_of(started))
    assert (await run(worker, box, "cat /tmp/job.out"))["result"]["output"] == "fine"
