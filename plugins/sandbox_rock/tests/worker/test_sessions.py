"""Sessions: each is one persistent shell, without the faults of ROCK's own sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .conftest import Body, Worker

pytestmark = pytest.mark.bwrap


async def run(worker: Worker, box: str, command: str, **more: Any) -> Body:
    return await worker.act(box, "run_in_session", session="s", command=command, **{"check": "silent", **more})


async def output(worker: Worker, box: str, command: str) -> str:
    """The output of a command that must not fail."""
    done = await run(worker, box, command)
    assert done["exit_code"] == 0, done
    text: str = done["output"]
    return text


async def test_a_session_is_one_shell_that_stays(worker: Worker, box: str) -> None:
    await run(worker, box, "x=1; cd /tmp; f() { echo from f; }")
    assert await output(worker, box, "echo $x; pwd; f") == "1\n/tmp\nfrom f"
    await worker.act(box, "create_session", session="other")
    other = await worker.act(box, "run_in_session", session="other", command="echo [$x]", check="silent")
    assert other["output"] == "[]"


async def test_both_outputs_come_in_the_order_in_which_they_were_written(worker: Worker, box: str) -> None:
    done = await run(worker, box, "echo a; echo b >&2; echo c; echo")
    assert done == {
        "session_type": "bash",
        "output": "a\nb\nc",
        "exit_code": 0,
        "failure_reason": "",
        "expect_string": "",
        "job_exit_code": None,
    }


async def test_the_exit_code_of_the_last_command_is_known_to_the_next(worker: Worker, box: str) -> None:
    await run(worker, box, "(exit 5)")
    assert await output(worker, box, "echo $?") == "5"


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [("(exit 3)", 3, ""), ("exit 7", 7, ""), ("echo 'open", 2, "unexpected EOF"), ("nowhere", 127, "not found")],
)
async def test_check_says_what_a_failure_becomes(worker: Worker, box: str, command: str, code: int, text: str) -> None:
    silent = await run(worker, box, command)
    assert (silent["exit_code"], text in silent["output"]) == (code, True)
    assert f"exit code {code}" in silent["failure_reason"]
    ignored = await run(worker, box, command, check="ignore")
    assert ignored["exit_code"] is None
    envelope = await worker.envelope(box, "run_in_session", session="s", command=command, check="raise")
    assert envelope["status"] == "Failed"
    assert (envelope["result"]["code"], envelope["result"]["exit_code"]) == (6000, code)
    assert text in envelope["message"]
    assert await output(worker, box, "echo on") == "on"


async def test_exit_ends_no_session_and_loses_nothing(worker: Worker, box: str) -> None:
    await run(worker, box, "x=kept; cd /tmp")
    for _ in range(3):
        assert (await run(worker, box, "exit 7"))["exit_code"] == 7
        assert await output(worker, box, "echo $x; pwd") == "kept\n/tmp"


async def test_output_may_hold_any_marker(worker: Worker, box: str) -> None:
    for marker in ("SHELLPS1PREFIX", "EXITCODESTART0EXITCODEEND", "UNIQUESTRING29234", "d 1 1 0", "$ "):
        assert await output(worker, box, f"echo 'a {marker} b'; echo end") == f"a {marker} b\nend"


async def test_a_time_out_keeps_the_output_and_the_next_command_sees_nothing_of_it(worker: Worker, box: str) -> None:
    await run(worker, box, "x=kept")
    late = "echo early; (sleep 3; echo late) & sleep 60; echo late"
    done = await run(worker, box, late, timeout=2)
    assert (done["exit_code"], done["output"]) == (124, "early")
    assert "did not end within 2 s" in done["failure_reason"]
    code, sentence = await worker.refused(box, "run_in_session", session="s", command=late, timeout=2, check="raise")
    assert code == 6000
    assert sentence.endswith("Its output:\nearly")
    assert await output(worker, box, "sleep 1.5; echo $x") == "kept"


async def test_a_client_that_hangs_up_ends_its_command(worker: Worker, box: str) -> None:
    body = {"sandbox_id": box, "session": "s", "command": "sleep 4321", "check": "silent"}
    asking = asyncio.create_task(worker.client.post(f"/sandboxes/{box}/run_in_session", json=body))
    seen = "ps -ef | grep -c '[s]leep 4321'"
    for _ in range(200):
        if (await worker.act(box, "execute", command=["sh", "-c", seen]))["stdout"] == "1\n":
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the command did not start")
    asking.cancel()
    assert await output(worker, box, seen + " || true") == "0"


async def test_a_session_starts_with_its_variables_and_files(worker: Worker) -> None:
    box = await worker.create(env={"OF_SANDBOX": "1"}, files={"setup.sh": b"echo hello; y=2\n"})
    opened = await worker.act(
        box, "create_session", session="s", startup_source=["./setup.sh", "~/absent"], env={"X": "a b"}, env_enable=True
    )
    assert opened["output"].startswith("hello\n")
    assert "absent" in opened["output"]
    assert await output(worker, box, "echo $X $y $OF_SANDBOX") == "a b 2 1"


async def test_sessions_are_refused_with_sentences(worker: Worker, box: str) -> None:
    for action, more, part in [
        ("create_session", {"session": "s"}, "exists already"),
        ("create_session", {"session": "t", "remote_user": "mallory"}, "not as 'mallory'"),
        ("create_session", {"session": "t", "env": {"A=B": "c"}}, "no environment variable"),
        ("run_in_session", {"session": "t", "command": "true"}, "no session 't'"),
        ("run_in_session", {"session": "s", "command": "true", "sandbox_id": "another"}, "sandbox_id"),
        ("close_session", {"session": "t"}, "no session 't'"),
    ]:
        code, sentence = await worker.refused(box, action, **more)
        assert (code, part in sentence) == (4000, True), sentence
    wrong = await worker.envelope(box, "run_in_session", session="s", timeout=-1)
    assert wrong["message"] == "invalid parameter"
    assert "command" in wrong["error"]
    assert "timeout" in wrong["error"]


async def test_a_closed_session_ends_with_what_it_started(worker: Worker, box: str) -> None:
    await run(worker, box, "sleep 4322 &")
    await worker.act(box, "close_session", session="s")
    left = await worker.act(box, "execute", command=["sh", "-c", "ps -ef | grep '[s]leep 4322'"])
    assert left == {"stdout": "", "stderr": "", "exit_code": 1}
    await worker.act(box, "create_session", session="s")
    assert await output(worker, box, "echo new") == "new"


async def test_a_command_whose_session_is_closed_is_the_callers_fault(worker: Worker, box: str) -> None:
    running = asyncio.create_task(
        worker.envelope(box, "run_in_session", session="s", command="touch /tmp/on; sleep 60", check="silent")
    )
    await worker.act(box, "execute", command=["sh", "-c", "until [ -e /tmp/on ]; do sleep 0.05; done"])
    await worker.act(box, "close_session", session="s")
    envelope = await running
    assert envelope["status"] == "Failed" or envelope["result"]["exit_code"] == 137, envelope
    if envelope["status"] == "Failed":
        assert envelope["result"]["code"] == 4000


async def test_sessions_that_the_client_leaves_behind_are_closed(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_rock.worker.rocklet.TEMPORARY_S", 0.0)
    monkeypatch.setattr("ale_rock.worker.rocklet.TEMPORARY_KEPT", 3)
    box = await worker.create()
    names = [f"bash-{10**18 + number}" for number in range(8)]
    job = "nohup sleep 60 < /dev/null > /tmp/o 2>&1 & echo PIDSTART${!}PIDEND;disown"
    await worker.act(box, "create_session", session=names[0])
    await worker.act(box, "run_in_session", session=names[0], command=job)
    await worker.act(box, "create_session", session=names[1])
    running = asyncio.create_task(
        worker.act(box, "run_in_session", session=names[1], command="touch /tmp/on; sleep 60")
    )
    await worker.act(box, "execute", command=["sh", "-c", "until [ -e /tmp/on ]; do sleep 0.05; done"])
    await worker.act(box, "create_session", session="mine")
    for name in names[2:]:
        await worker.act(box, "create_session", session=name)
    left = list(worker.service.held[box].rocklet.sessions)
    assert left == [names[0], names[1], "mine", names[6], names[7]]
    running.cancel()


async def test_many_sessions_run_at_once(worker: Worker) -> None:
    box = await worker.create()
    names = [f"n{number}" for number in range(16)]
    await asyncio.gather(*(worker.act(box, "create_session", session=name) for name in names))
    done = await asyncio.gather(
        *(worker.act(box, "run_in_session", session=name, command=f"sleep 0.2; echo {name}") for name in names)
    )
    assert [each["output"] for each in done] == names
