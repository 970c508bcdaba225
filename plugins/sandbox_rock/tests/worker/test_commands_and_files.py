"""Commands without a session, and files, in ROCK's API."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ale.specs.sandbox import SandboxSpec

from .conftest import Body, Worker, Workers

pytestmark = pytest.mark.bwrap


async def test_a_list_runs_without_a_shell_and_text_is_only_split(worker: Worker) -> None:
    box = await worker.create()
    for command, stdout in [
        (["printf", "%s|", "$HOME", "*", "a b;c", ""], "$HOME|*|a b;c||"),
        ("printf '%s|' $HOME * 'a b;c'", "$HOME|*|a b;c|"),
    ]:
        assert (await worker.act(box, "execute", command=command))["stdout"] == stdout
    done = await worker.act(box, "execute", command=["sh", "-c", "echo out; echo err >&2; exit 9"])
    assert done == {"stdout": "out\n", "stderr": "err\n", "exit_code": 9}
    done = await worker.act(box, "execute", command=["sh", "-c", "pwd; echo $X"], cwd="/tmp", env={"X": "y"})
    assert done["stdout"] == "/tmp\ny\n"
    assert (await worker.act(box, "execute", command=["nowhere"]))["exit_code"] == 127
    done = await worker.act(box, "execute", command=["sh", "-c", "echo early; sleep 60"], timeout=2)
    assert (done["stdout"], done["exit_code"]) == ("early\n", 124)
    for command in ("", [], [""], "echo 'open"):
        assert (await worker.refused(box, "execute", command=command))[0] == 4000
    sandbox = worker.service.held[box].sandbox
    with mock.patch.object(sandbox, "exec", wraps=sandbox.exec) as run:
        await worker.act(box, "execute", command=["true"], timeout=7)
    assert run.call_args.kwargs["timeout_s"] == 7, "ROCK's client waits for more than that"


async def test_output_that_is_no_text_is_shown_as_bytes(worker: Worker) -> None:
    box = await worker.create()
    assert (await worker.act(box, "execute", command=["printf", r"a\377b"]))["stdout"] == r"a\xffb"


async def test_text_files_are_written_and_read(worker: Worker) -> None:
    box = await worker.create()
    text = "a\r\nb\nü" * 100_000
    await worker.act(box, "write_file", path="new/folder/file.txt", content=text)
    assert (await worker.act(box, "read_file", path="new/folder/file.txt"))["content"] == text
    await worker.act(box, "execute", command=["sh", "-c", r"printf '\344' > latin"])
    assert (await worker.act(box, "read_file", path="latin", encoding="latin-1"))["content"] == "ä"
    assert (await worker.act(box, "read_file", path="latin", errors="replace"))["content"] == "\ufffd"


@pytest.mark.parametrize(
    ("action", "body", "part"),
    [
        ("read_file", {"path": "absent"}, "There is no file absent."),
        ("read_file", {"path": "/tmp"}, "is a folder"),
        ("read_file", {"path": "/dev/zero"}, "not a regular file"),
        ("read_file", {"path": "a\0b"}, "no path"),
        ("read_file", {"path": "binary"}, "no text in utf-8"),
        ("read_file", {"path": "binary", "encoding": "klingon"}, "unknown encoding"),
        ("write_file", {"path": "/proc/version", "content": "x"}, "could not write"),
        ("write_file", {"path": "/tmp", "content": "x"}, "directory"),
    ],
)
async def test_a_file_that_cannot_be_moved_is_the_callers_fault(
    worker: Worker, action: str, body: Body, part: str
) -> None:
    box = await worker.create(files={"binary": b"\xff"})
    code, sentence = await worker.refused(box, action, **body)
    assert code == 4000
    assert part in sentence


async def upload(worker: Worker, box: str, target: str | None, content: Any, **fields: str) -> Body:
    """Upload as ROCK's client does."""
    data = {"sandbox_id": box, **({} if target is None else {"target_path": target}), **fields}
    files = None if content is None else {"file": ("name.bin", content, "application/octet-stream")}
    answer = await worker.client.post(f"/sandboxes/{box}/upload", data=data, files=files, timeout=120)
    envelope: Body = answer.json()
    return envelope


@pytest.mark.parametrize("size", [0, 1, 5 << 20, 40 << 20])
async def test_an_upload_arrives_whole(worker: Worker, size: int) -> None:
    box = await worker.create()
    content = os.urandom(size)
    envelope = await upload(worker, box, "/tmp/new/name.bin", content)
    assert envelope["result"] == {"success": True, "message": "Wrote /tmp/new/name.bin.", "file_name": "name.bin"}
    seen = await worker.act(
        box, "execute", command=["sh", "-c", "sha256sum < /tmp/new/name.bin; stat -c %a:%U /tmp/new/*"]
    )
    assert seen["stdout"] == f"{hashlib.sha256(content).hexdigest()}  -\n644:agent\n"


async def test_an_upload_that_fails_is_reported_as_failed(worker: Worker) -> None:
    box = await worker.create(files={"folder/x": b""})
    for target, content, part in [
        ("/usr/x", b"x", "could not write /usr/x: Read-only"),
        ("folder", b"x", "could not write folder: Is a directory"),
        ("folder", b"x" * (5 << 20), "could not write folder: Is a directory"),
        ("/tmp/full", b"x" * (80 << 20), "No space left"),
        (None, b"x", "no path"),
        ("/tmp/x", None, "multipart/form-data"),
    ]:
        envelope = await upload(worker, box, target, content)
        assert envelope["status"] == "Failed", target
        assert envelope["result"]["code"] == 4000
        assert part in envelope["message"], envelope["message"]
    other = await upload(worker, box, "/tmp/x", b"x", sandbox_id="another")
    assert "sandbox_id" in other["message"]
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    cut = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nda'
    for body, part in [(cut, "cut short"), (b"none at all", "broken"), (b"", "cut short")]:
        answer = await worker.client.post(f"/sandboxes/{box}/upload", content=body, headers=kind)
        assert part in answer.json()["message"]


async def test_a_large_upload_is_not_held_in_memory(workers: Workers, tmp_path: Path) -> None:
    size = 200 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    async with workers(spool_folder=str(tmp_path)) as worker:
        box = await worker.create(resources={"disk_mib": 256, "memory_mib": 512})

        async def body() -> Any:
            yield b'--b\r\nContent-Disposition: form-data; name="sandbox_id"\r\n\r\n' + box.encode()
            yield b'\r\n--b\r\nContent-Disposition: form-data; name="target_path"\r\n\r\n/tmp/large'
            yield b'\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="large"\r\n\r\n'
            for _ in range(size >> 20):
                yield b"x" * (1 << 20)
            yield b"\r\n--b--\r\n"

        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = await worker.client.post(f"/sandboxes/{box}/upload", content=body(), headers=kind, timeout=280)
        assert answer.json()["status"] == "Success", answer.text
        seen = await worker.act(box, "execute", command=["stat", "-c", "%s", "/tmp/large"])
        assert int(seen["stdout"]) == size
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    assert grown < size // 2, f"{grown >> 20} MiB"
    assert os.listdir(tmp_path) == []


async def test_limits_of_bodies_are_refused_with_sentences(workers: Workers) -> None:
    async with workers(max_body_bytes=10_000, max_file_bytes=2 << 20, max_read_bytes=1000) as worker:
        box = await worker.create()
        code, sentence = await worker.refused(box, "write_file", path="x", content="x" * 20_000)
        assert (code, "larger than" in sentence) == (4000, True)
        assert "larger than" in (await upload(worker, box, "x", b"x" * (3 << 20)))["message"]
        await worker.act(box, "write_file", path="x", content="x" * 1001)
        code, sentence = await worker.refused(box, "read_file", path="x")
        assert (code, "larger than" in sentence) == (4000, True)
        spec = SandboxSpec(files={"x": b"x" * 20_000}).model_dump(mode="json")
        answer = await worker.client.post("/sandboxes", json={"id": "ale-large", "spec": spec})
        assert (answer.status_code, answer.json()["fault"]) == (400, "caller")
