"""ALE's own routes: the whole of `Sandbox.exec`, files of bytes, and errors that keep their kinds."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from urllib.parse import quote_from_bytes

import pytest

from .conftest import Body, Worker

pytestmark = pytest.mark.bwrap


async def exec_in(worker: Worker, box: str, command: str, **more: object) -> Body:
    """Run a command that is answered; the outputs are decoded."""
    body = json.dumps({"command": command, **more})
    answer = await worker.client.post(f"/sandboxes/{box}/exec", content=body)
    assert answer.status_code == 200, answer.text
    outcome: Body = answer.json()
    return {**outcome, "stdout": base64.b64decode(outcome["stdout"]), "stderr": base64.b64decode(outcome["stderr"])}


async def test_exec_says_all_that_the_contract_can(worker: Worker) -> None:
    box = await worker.create()
    done = await exec_in(worker, box, "cat; pwd; echo $X >&2; exit 3", stdin="/wAB", cwd="/tmp", env={"X": "y"})
    assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, b"\xff\x00\x01/tmp\n", b"y\n")
    assert (done["timed_out"], done["truncated"]) == (False, False)
    assert (await exec_in(worker, box, "id -un", user="tests"))["stdout"] == b"tests\n"
    done = await exec_in(worker, box, "yes | head -c 100000", max_output_bytes=10)
    assert (len(done["stdout"]), done["truncated"]) == (10, True)
    done = await exec_in(worker, box, "echo early; sleep 60", timeout_s=2)
    assert (done["exit_code"], done["timed_out"], done["stdout"]) == (124, True, b"early\n")


async def test_no_text_of_a_command_is_an_error(worker: Worker) -> None:
    box = await worker.create()
    assert (await exec_in(worker, box, "echo \0"))["exit_code"] == 2
    assert (await exec_in(worker, box, "printf %s '\ud83d' | wc -c"))["exit_code"] == 0
    for body in (b"", b"[]", b'{"command": 5}', b'{"command": "x", "timeout_s": 0}', b'{"command": "x", "stdin": "?"}'):
        answer = await worker.client.post(f"/sandboxes/{box}/exec", content=body)
        assert (answer.status_code, answer.json()["fault"]) == (400, "caller")
    answer = await worker.client.post(f"/sandboxes/{box}/exec", json={"command": "x", "user": "root"})
    assert "not 'root'" in answer.json()["detail"]


async def test_a_command_ends_when_its_client_hangs_up(worker: Worker) -> None:
    box = await worker.create()
    body = {"command": "touch /tmp/on; sleep 4325"}
    asking = asyncio.create_task(worker.client.post(f"/sandboxes/{box}/exec", json=body))
    await exec_in(worker, box, "until [ -e /tmp/on ]; do sleep 0.05; done")
    asking.cancel()
    for _ in range(100):
        if (await exec_in(worker, box, "ps -ef | grep '[s]leep 4325'"))["exit_code"] == 1:
            return
        await asyncio.sleep(0.05)
    pytest.fail("the command goes on")


@pytest.mark.parametrize("size", [0, 100, (4 << 20) - 1, 4 << 20, (9 << 20) + 5])
async def test_files_of_bytes_go_in_and_out(worker: Worker, size: int) -> None:
    box = await worker.create()
    content = os.urandom(size)
    path = f"/sandboxes/{box}/files?path={quote_from_bytes('ordner/ü'.encode() + bytes([255]))}"
    assert (await worker.client.put(f"{path}&mode={0o755}", content=content)).status_code == 200
    answer = await worker.client.get(path)
    assert (answer.status_code, answer.content == content) == (200, True)
    assert (await exec_in(worker, box, "stat -c %a ordner/*"))["stdout"] == b"755\n"
    assert (await worker.client.get(f"{path}&max_bytes={size}")).status_code == 200
    if size:
        refused = await worker.client.get(f"{path}&max_bytes={size - 1}")
        assert (refused.status_code, refused.json()["kind"]) == (409, "other")


async def test_what_is_no_file_is_told_by_its_kind(worker: Worker) -> None:
    box = await worker.create()
    for path, status, kind in [("absent", 404, "missing"), ("/tmp", 409, "folder"), ("/dev/zero", 409, "other")]:
        answer = await worker.client.get(f"/sandboxes/{box}/files", params={"path": path})
        assert (answer.status_code, answer.json()["kind"]) == (status, kind)
    for query in ("path=", "", "path=x&max_bytes=-1", "path=x&max_bytes=x", "path=a%00b"):
        answer = await worker.client.get(f"/sandboxes/{box}/files?{query}")
        assert (answer.status_code, answer.json()["fault"]) == (400, "caller")
    for query in ("path=x&user=root", "path=x&mode=0o644", "path=/usr/x"):
        answer = await worker.client.put(f"/sandboxes/{box}/files?{query}", content=b"x")
        assert (answer.status_code, answer.json()["fault"]) == (400, "caller")


async def test_what_the_agent_left_running_is_ended(worker: Worker) -> None:
    box = await worker.create()
    await exec_in(worker, box, "(setsid sleep 4326 >/dev/null 2>&1 &)")
    assert (await worker.client.post(f"/sandboxes/{box}/kill_agent_processes")).status_code == 200
    assert (await exec_in(worker, box, "ps -ef | grep '[s]leep 4326'"))["exit_code"] == 1
