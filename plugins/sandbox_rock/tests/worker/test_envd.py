"""The worker as E2B's `envd`: the Connect protocol at its edges, and processes that several requests follow.

`client/test_e2b.py` has what E2B's SDK does with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from ale_rock.worker.envd.start_script import StartScript

from .conftest import Worker

UNARY, STREAM = {"Content-Type": "application/json"}, {"Content-Type": "application/connect+json"}


def frame(message: object, flags: int = 0) -> bytes:
    """A frame of the protocol."""
    data = json.dumps(message).encode()
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


async def frames(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The messages of an answer as they come, and last what ends it."""
    buffer = b""
    async for piece in answer.aiter_raw():
        buffer += piece
        while len(buffer) >= 5 and len(buffer) >= (end := 5 + int.from_bytes(buffer[1:5], "big")):
            yield json.loads(buffer[5:end])
            buffer = buffer[end:]


@pytest.fixture
async def envd(worker: Worker) -> str:
    """The path of a sandbox's `envd`."""
    return f"/sandboxes/{await worker.create()}/envd"


@asynccontextmanager
async def followed(worker: Worker, path: str, message: object, **headers: str) -> AsyncIterator[Any]:
    """The answer to a call of `process.Process` whose answer is a stream."""
    url = f"{path.replace('envd/', 'envd/process.Process/')}"
    async with worker.client.stream("POST", url, content=frame(message), headers={**STREAM, **headers}) as answer:
        assert answer.status_code == 200
        yield frames(answer)


def run(text: str, **more: Any) -> dict[str, Any]:
    """A request to start a command."""
    return {"process": {"cmd": "/bin/sh", "args": ["-c", text]}, "stdin": False, **more}


@pytest.mark.bwrap
async def test_calls_that_are_no_json_of_the_protocol_are_refused_with_its_codes(worker: Worker, envd: str) -> None:
    async def call(method: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        answer = await worker.client.post(f"{envd}/{method}", content=body, headers=headers)
        if headers["Content-Type"] == STREAM["Content-Type"] and answer.status_code == 200:
            assert answer.content[0] == 2
            return 200, json.loads(answer.content[5:])["error"]["code"]
        assert len(answer.json()["message"]) > 10
        return answer.status_code, answer.json()["code"]

    stat, start, feed = "filesystem.Filesystem/Stat", "process.Process/Start", "process.Process/StreamInput"
    for method, body, headers, expected in (
        (stat, b"\x0a\x01/", {"Content-Type": "application/proto"}, (501, "unimplemented")),
        (stat, b"{}", {**UNARY, "Content-Encoding": "gzip"}, (501, "unimplemented")),
        (stat, b"[1", UNARY, (400, "invalid_argument")),
        (stat, b"[]", UNARY, (400, "invalid_argument")),
        (stat, b"{}", UNARY, (400, "invalid_argument")),
        (stat, b'{"path": "/a\\u0000b"}', UNARY, (400, "invalid_argument")),
        (stat, b'{"path": "/nope"}', UNARY, (404, "not_found")),
        ("filesystem.Filesystem/ListDir", b'{"path": "/", "depth": "x"}', UNARY, (400, "invalid_argument")),
        ("filesystem.Filesystem/CreateWatcher", b"{}", UNARY, (501, "unimplemented")),
        ("other.Service/Call", b"{}", UNARY, (501, "unimplemented")),
        ("process.Process/SendSignal", b'{"process": {"pid": 1}, "signal": 9}', UNARY, (404, "not_found")),
        (start, b"{}", STREAM, (200, "invalid_argument")),
        (start, frame({}), STREAM, (200, "invalid_argument")),
        (start, frame(run("true"))[:-1], STREAM, (200, "invalid_argument")),
        (start, frame(run("true", pty={"size": {"rows": -1, "cols": 1}})), STREAM, (200, "invalid_argument")),
        (start, frame(run("true\0")), STREAM, (200, "invalid_argument")),
        (start, frame(run("true")), {**STREAM, "Connect-Timeout-Ms": "soon"}, (200, "invalid_argument")),
        (
            start,
            frame(run("true")),
            {**STREAM, "X-Rock-Authorization": "Basic bm9ib2R5Og=="},
            (200, "invalid_argument"),
        ),
        ("process.Process/Connect", frame({"process": {"tag": "x"}}), STREAM, (200, "not_found")),
        (feed, frame({"event": {"data": {"input": {"stdin": ""}}}}), STREAM, (200, "invalid_argument")),
        (feed, b"\0\xff\xff\xff\xff", STREAM, (200, "resource_exhausted")),
        (feed, b"\0\0", STREAM, (200, "invalid_argument")),
    ):
        assert await call(method, body, headers) == expected, (method, body)


@pytest.mark.bwrap
async def test_a_sandbox_that_is_gone_is_said_to_be_in_the_words_that_the_sdk_knows(worker: Worker, envd: str) -> None:
    assert (await worker.client.get(f"{envd}/health")).status_code == 204
    await worker.client.delete(envd.removesuffix("/envd"))
    for method, path in (
        ("GET", "health"),
        ("GET", "files?path=a"),
        ("POST", "files?path=a"),
        ("POST", "process.Process/List"),
    ):
        answer = await worker.client.request(method, f"{envd}/{path}", content=b"{}" if method == "POST" else None)
        assert (answer.status_code, "was not found" in answer.json()["message"]) == (502, True), path


@pytest.mark.bwrap
async def test_a_process_has_several_readers_a_tag_and_signs_of_life(worker: Worker, envd: str) -> None:
    order = run("read x </dev/null; sleep 1.3; echo out", tag="mine")
    async with followed(worker, f"{envd}/Start", order, **{"Keepalive-Ping-Interval": "1"}) as first:
        pid = (await anext(first))["event"]["start"]["pid"]
        listed = (await worker.client.post(f"{envd}/process.Process/List", json={})).json()["processes"]
        assert [(each["pid"], each["tag"], each["config"]["cmd"]) for each in listed] == [(pid, "mine", "/bin/sh")]
        async with followed(worker, f"{envd}/Connect", {"process": {"tag": "mine"}}) as second:
            ends = [[each async for each in reader] for reader in (first, second)]
    out = {"event": {"data": {"stdout": "b3V0Cg=="}}}
    end = {"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}}
    assert ends[0] == [{"event": {"keepalive": {}}}, out, end, {}]
    assert ends[1] == [{"event": {"start": {"pid": pid}}}, out, end, {}]


@pytest.mark.bwrap
async def test_a_reader_that_does_not_read_holds_a_process_up_until_it_leaves(worker: Worker, envd: str) -> None:
    order = run("head -c 60000000 /dev/zero; echo done >mark; sleep 100")
    async with followed(worker, f"{envd}/Start", order) as unread:
        pid = (await anext(unread))["event"]["start"]["pid"]
        await asyncio.sleep(0.5)
        missing = await worker.client.post(f"{envd}/filesystem.Filesystem/Stat", json={"path": "mark"})
        assert missing.status_code == 404
    for _ in range(200):
        if (await worker.client.get(f"{envd}/files?path=mark")).text == "done\n":
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("nobody reads, and the process does not go on")
    async with followed(worker, f"{envd}/Connect", {"process": {"pid": pid}}) as reader:
        asked = {"process": {"pid": pid}, "signal": "SIGNAL_SIGTERM"}
        assert (await worker.client.post(f"{envd}/process.Process/SendSignal", json=asked)).json() == {}
        ended = [each async for each in reader][1:]
    status = "signal: terminated"
    assert ended == [{"event": {"end": {"exitCode": -1, "exited": False, "status": status, "error": status}}}, {}]


@pytest.mark.bwrap
async def test_uploads_that_are_broken_are_refused(worker: Worker, envd: str) -> None:
    octets, form = {"Content-Type": "application/octet-stream"}, {"Content-Type": "multipart/form-data; boundary=b"}
    for path, body, headers, word in (
        ("?path=a", b"plain text", {**octets, "Content-Encoding": "gzip"}, "no gzip"),
        ("?path=a", b"\x1f\x8b", {**octets, "Content-Encoding": "gzip"}, "cut short"),
        ("?path=a", b"x", {**octets, "Content-Encoding": "br"}, "'br'"),
        ("?path=a", b"x", {**octets, "X-Metadata-A": "b"}, "metadata"),
        ("?path=", b"x", octets, "no path"),
        ("?path=a&username=bob", b"x", octets, "'bob'"),
        ("", b"--b--\r\n", form, "no file"),
        ("", b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx', form, "cut short"),
        ("", b'--b\r\nContent-Disposition: form-data; name="file"; filename=""\r\n\r\nx\r\n--b--\r\n', form, "no path"),
    ):
        answer = await worker.client.post(f"{envd}/files{path}", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, 400), (path, body)
        assert word in answer.json()["message"], (path, body)
    assert (await worker.client.get(f"{envd}/files?path=a")).status_code == 404


def test_the_first_line_of_a_process_is_told_from_output_around_it() -> None:
    script = StartScript(["/bin/sh", "-c", "true"], holder=None, size=None)
    mark = script.text.split()[1]
    assert script.read(b"noise\n" + mark.encode()[:5]) == (None, b"")
    started, rest = script.read(f"{mark[5:]} 17\nfirst".encode())
    assert started is not None
    assert (started.pid, started.terminal, rest) == (17, None, b"noise\nfirst")
    for lie in ("x", "-1", str(1 << 32), "9" * 5000):
        script = StartScript(["a"], holder=None, size=None)
        with pytest.raises(ValueError, match="process id"):
            script.read(f"{script.text.split()[1]} {lie}\n".encode())
    with pytest.raises(ValueError, match="writes much"):
        StartScript(["a"], holder=None, size=None).read(b"x" * (2 << 20))
