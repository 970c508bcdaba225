"""Bad input to the endpoint, over real sockets: each is refused or ended, and neither the record nor the server
suffers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_sessions import ServedSession, ServedSessions, pliable_endpoint

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Sampling
from ale_testing.fake_engines import ProgrammableEngine, whole_answer

PATHS = ["chat/completions", "responses", "messages"]
USER = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {path: {"input" if path == "responses" else "messages": USER} for path in PATHS}
every_api = pytest.mark.parametrize("path", PATHS)


@pytest.fixture
async def served() -> AsyncIterator[tuple[ServedSessions, ProgrammableEngine]]:
    endpoint, engine = pliable_endpoint()
    async with endpoint:
        yield endpoint, engine


@pytest.fixture
def engine(served: tuple[ServedSessions, ProgrammableEngine]) -> ProgrammableEngine:
    return served[1]


@pytest.fixture
async def session(served: tuple[ServedSessions, ProgrammableEngine]) -> AsyncIterator[ServedSession]:
    """A session with one recorded call, which is still there at the end; then a next call works."""
    endpoint, engine = served
    opened = endpoint.open("e1", Sampling(max_tokens=64), max_calls=999, max_context=4096)
    assert (await post(opened, "chat/completions")).status_code == 200
    recorded = opened.recorder.chunks, opened.recorder.sequences
    yield opened
    assert (opened.recorder.chunks[:1], opened.recorder.sequences[:1]) == recorded
    engine.does = None
    again = endpoint.open("e2", Sampling(), max_calls=1, max_context=4096)
    assert (await post(again, "chat/completions")).status_code == 200


async def post(session: ServedSession, path: str, content: bytes | None = None, **headers: str) -> httpx.Response:
    body = json.dumps(ASKED[path]).encode() if content is None else content
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        headers = {"x-api-key": session.api_key, **headers}
        return await client.post(f"{session.base_url}/{path}", content=body, headers=headers)


@asynccontextmanager
async def connection(session: ServedSession) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = httpx.URL(session.base_url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def head(session: ServedSession, *lines: str, path: str = "chat/completions") -> bytes:
    begun = [f"POST /v1/{path} HTTP/1.1", "host: x", f"x-api-key: {session.api_key}", *lines]
    return "\r\n".join([*begun, "", ""]).encode()


async def answered(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and body of an answer, within 10 s."""
    async with asyncio.timeout(10):
        said = await reader.readuntil(b"\r\n\r\n")
        lines = said.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
        return int(said.split()[1]), json.loads(await reader.readexactly(length))


async def ends(reader: asyncio.StreamReader, within_s: float = 10) -> None:
    """The server closes the connection."""
    with suppress(ConnectionError):
        async with asyncio.timeout(within_s):
            while await reader.read(1 << 16):
                continue


def refused(answer: httpx.Response, status: int, path: str, sentence: str = "") -> None:
    """In the API's own shape."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    body = answer.json()
    assert (body.get("type") == "error") == (path == "messages")
    assert set(body["error"]) == ({"type", "message"} if path == "messages" else {"message", "type", "param", "code"})
    assert sentence in body["error"]["message"]


# --- what is no request


def wrapped(path: str, value: str) -> bytes:
    """A request with a raw piece of JSON as an extra field."""
    return (json.dumps(ASKED[path])[:-1] + f', "extra": {value}}}').encode()


@every_api
@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "-Infinity", "1" * 5000, "[" * 100_000 + "]" * 100_000, '"\xff"', '"\x00"', "'a'", ""],
    ids=lambda value: value[:9].encode().hex(),
)
async def test_what_is_not_json_is_refused(session: ServedSession, path: str, value: str) -> None:
    body = wrapped(path, value).replace("\xff".encode(), b"\xff")
    refused(await post(session, path, body), 400, path, "not valid JSON")


@every_api
@pytest.mark.parametrize("value", ["1e999", "-1e999", "9" * 4000, '{"a": 1, "a": 2}', r'"\u0000"', "null"])
async def test_odd_json_in_fields_that_nobody_reads_is_no_matter(session: ServedSession, path: str, value: str) -> None:
    assert (await post(session, path, wrapped(path, value))).status_code == 200


@pytest.mark.parametrize("key", ["max_tokens", "n", "max_completion_tokens"])
@pytest.mark.parametrize("value", ["1e999", "1.5", '"9"', "true", "[]", "0", "-" + "9" * 400])
async def test_numbers_that_are_none_are_refused(session: ServedSession, key: str, value: str) -> None:
    body = wrapped("chat/completions", "1").replace(b'"extra": 1', f'"{key}": {value}'.encode())
    refused(await post(session, "chat/completions", body), 400, "chat/completions", key)


@every_api
async def test_half_a_character_is_read_as_the_mark_for_one(session: ServedSession, path: str) -> None:
    texts = [r"cut \ud83d", r"whole \ud83d\ude00 \uD83D\uDE00", "null \\u0000 byte"]
    for text in texts:
        body = json.dumps(ASKED[path]).replace("hi", text).encode()
        assert (await post(session, path, body)).status_code == 200
    said = [sequence.messages[-2].content for sequence in session.recorder.sequences[1:]]
    assert said == ["cut \ufffd", "whole \U0001f600 \U0001f600", "null \0 byte"]


async def test_half_a_character_that_the_policy_writes_does_not_break_the_answer(
    session: ServedSession, engine: ProgrammableEngine
) -> None:
    async def half(request: GenerateRequest) -> Any:
        return whole_answer('<tool_call>\n{"name": "shell", "arguments": {"command": "\\ud83d"}}\n</tool_call>')

    engine.does = half
    for path in PATHS:
        for stream in (False, True):
            answer = await post(session, path, json.dumps({**ASKED[path], "stream": stream}).encode())
            assert answer.status_code == 200
            assert b"ud83d" in answer.content
            answer.content.decode("utf-8")


@every_api
async def test_words_where_a_list_of_tools_or_a_choice_stands_are_refused(session: ServedSession, path: str) -> None:
    for extra in ({"tools": "all"}, {"tools": [7]}, {"tool_choice": 7}, {"tool_choice": ["x"]}, {"stream": 1}):
        refused(await post(session, path, json.dumps({**ASKED[path], **extra}).encode()), 400, path)
    for choice in ({"type": "tool", "name": [1]}, {"type": [1], "function": {"name": {}}}):
        body = json.dumps({**ASKED[path], "tool_choice": choice}).encode()
        if path != "responses":  # an object without a name is a tool that a server runs
            refused(await post(session, path, body), 400, path, "tool_choice")


@every_api
async def test_nested_as_deep_as_json_is_read_is_still_a_plain_refusal(session: ServedSession, path: str) -> None:
    shape = {"name": "t", "type": "custom" if path == "messages" else "function"}
    shape["input_schema" if path == "messages" else "parameters"] = "HERE"
    tool = {"type": "function", "function": shape} if path == "chat/completions" else shape
    body = json.dumps({**ASKED[path], "tools": [tool]})
    for depth in (200, 500, 900, 960, 980, 990):
        deep = '{"a":' * depth + "1" + "}" * depth
        answer = await post(session, path, body.replace('"HERE"', deep).encode())
        assert answer.status_code in (200, 400), (depth, answer.text)


async def test_keys_and_headers_of_any_bytes_open_nothing(session: ServedSession) -> None:
    for key in (b"\xff\xfe\x80", "clé".encode(), b"x" * 9999, b"Bearer", b"Bearer  ", b""):
        async with connection(session) as (reader, writer):
            line = b"authorization: " + key if key.startswith(b"B") else b"x-api-key: " + key
            begun = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
            writer.write(begun + line + b"\r\n\r\n{}")
            status, body = await answered(reader)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * (1 << 20) + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01" * 99,
        b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\r\n\0\0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ],
    ids=["a head of 1 MB", "TLS", "no header", "bytes in the path", "null bytes", "negative length", "two lengths"],
)
async def test_what_is_not_http_is_answered_with_400_and_closed(session: ServedSession, sent: bytes) -> None:
    async with connection(session) as (reader, writer):
        writer.write(sent)
        with suppress(ConnectionError):  # it may be closed before all was sent
            status, body = await answered(reader)
            assert (status, body["error"]["code"]) == (400, "invalid_http")
        await ends(reader)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/messages", 405),
        ("OPTIONS", "/v1/responses", 405),
        ("DELETE", "/v1/models", 405),
        ("HEAD", "/v1/chat/completions", 405),
        ("HEAD", "/", 200),
        ("HEAD", "/v1/models", 200),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/messages/else", 404),
        ("GET", "/v1/../etc/passwd", 404),
        ("BREW", "/v1/responses", 405),
    ],
)
async def test_wrong_methods_and_unknown_paths(session: ServedSession, method: str, path: str, status: int) -> None:
    async with httpx.AsyncClient(trust_env=False, base_url=session.base_url.removesuffix("/v1")) as client:
        answer = await client.request(method, path)
    assert answer.status_code == status
    if status == 405:
        assert "allow" in answer.headers
    if status >= 400 and method != "HEAD":
        refused(answer, status, "messages" if "/messages" in path else "chat/completions", method)


async def test_json_is_json_whatever_the_content_type_says(session: ServedSession) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense", "application/json; charset=latin-1"):
        answer = await post(session, "chat/completions", None, **{"content-type": kind})
        assert answer.status_code == 200


async def test_a_websocket_finds_nothing_here(session: ServedSession) -> None:
    async with connection(session) as (reader, writer):
        lines = ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: eA=="]
        writer.write(head(session, *lines, "content-length: 0").replace(b"POST", b"GET"))
        assert (await answered(reader))[0] == 405


# --- what is too much


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@every_api
async def test_a_body_of_100_mb_is_refused_before_it_comes(session: ServedSession, path: str) -> None:
    async with connection(session) as (reader, writer):
        writer.write(head(session, "content-length: 100000000", "expect: 100-continue", path=path))
        status, body = await answered(reader)
    assert (status, (body.get("type") == "error")) == (413, path == "messages")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_100_mb_that_is_sent_nevertheless_takes_no_memory(
    session: ServedSession, chunked: bool
) -> None:
    piece = b" " * (1 << 20)
    before = resident_bytes()
    async with connection(session) as (reader, writer):
        writer.write(head(session, "transfer-encoding: chunked" if chunked else "content-length: 104857600"))
        with suppress(ConnectionError):
            for _ in range(100):
                writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n" if chunked else piece)
                await writer.drain()
        assert (await answered(reader))[0] == 413
    assert resident_bytes() - before < 60 << 20


@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_40_000_messages_are_read_and_found_too_long(session: ServedSession, role: str) -> None:
    began = time.monotonic()
    body = json.dumps({"messages": [{**USER[0], "role": role}] * 40_000}).encode()
    answer = await post(session, "chat/completions", body)
    refused(answer, 400, "chat/completions", "leaves no room")
    assert time.monotonic() - began < 12


@every_api
async def test_a_prompt_over_the_context_limit_is_the_apis_own_refusal_and_records_nothing(
    session: ServedSession, path: str
) -> None:
    """Not an empty answer that was `cut`: an agent would go on with it for ever, and the policy never said it."""
    for stream in (False, True):
        body = json.dumps({**ASKED[path], "stream": stream}).replace("hi", "x" * 5000).encode()
        answer = await post(session, path, body)
        refused(answer, 400, path, "leaves no room")
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert path == "messages" or error["code"] == "context_length_exceeded"
    assert len(session.recorder.chunks) == 1


# --- who is slow, or gone


@pytest.mark.parametrize("after_an_answer", [False, True])
async def test_a_head_that_trickles_is_ended(
    session: ServedSession, monkeypatch: pytest.MonkeyPatch, after_an_answer: bool
) -> None:
    monkeypatch.setattr("ale_endpoint.connection.HEAD_S", 0.6)
    async with connection(session) as (reader, writer):
        if after_an_answer:
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await answered(reader))[0] == 200

        async def trickle() -> None:
            with suppress(ConnectionError):
                for byte in head(session, "x-slow: " + "a" * 400):
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.05)

        began = time.monotonic()
        slow = asyncio.create_task(trickle())
        await ends(reader, 5)
        slow.cancel()
        assert 0.4 < time.monotonic() - began < 15


async def test_a_body_that_trickles_is_answered_with_408_and_its_rest_is_not_waited_for(
    session: ServedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_endpoint.http.BODY_S", 0.5)
    monkeypatch.setattr("ale_endpoint.connection.HEAD_S", 0.5)
    async with connection(session) as (reader, writer):
        writer.write(head(session, "transfer-encoding: chunked"))

        async def trickle() -> None:
            with suppress(ConnectionError):
                while True:
                    writer.write(b"1\r\n \r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)

        slow = asyncio.create_task(trickle())
        assert (await answered(reader))[0] == 408
        await ends(reader, 5)
        slow.cancel()


async def test_who_leaves_in_the_middle_of_the_body_leaves_nothing(session: ServedSession) -> None:
    for _ in range(5):
        async with connection(session) as (_, writer):
            writer.write(head(session, "content-length: 999") + b'{"messages"')
            await writer.drain()
    await asyncio.sleep(0.1)
    assert len(session.recorder.chunks) == 1


async def test_hundreds_of_idle_connections_keep_nobody_else_out(
    session: ServedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_endpoint.connection.HEAD_S", 5.0)
    port = httpx.URL(session.base_url).port
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
    try:
        for _, writer in idle[::2]:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost:")
        began = time.monotonic()
        assert (await post(session, "chat/completions")).status_code == 200
        assert time.monotonic() - began < 4.5, "before the others were ended"
        for reader, _ in idle:
            await ends(reader, 10)
    finally:
        for _, writer in idle:
            writer.close()


@every_api
async def test_who_leaves_in_the_middle_of_a_stream_ends_the_generation_alone(
    served: tuple[ServedSessions, ProgrammableEngine],
    session: ServedSession,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    monkeypatch.setattr("ale_endpoint.http.PATIENCE_S", 0.05)
    monkeypatch.setattr("ale_endpoint.http.ALIVE_S", 0.05)
    endpoint, engine = served
    other = endpoint.open("other", Sampling(), max_calls=9, max_context=4096)
    going, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: GenerateRequest) -> Any:
        try:
            await going.wait()
        except asyncio.CancelledError:
            ended.set()
            raise
        return whole_answer("late")

    engine.does = wait
    body = json.dumps({**ASKED[path], "stream": True}).encode()
    staying = asyncio.create_task(post(other, path, body))
    async with connection(session) as (reader, writer):
        writer.write(head(session, f"content-length: {len(body)}", path=path) + body)
        async with asyncio.timeout(5):
            await reader.readuntil(b": the model is at work")
    async with asyncio.timeout(5):
        await ended.wait()
    assert len(session.recorder.chunks) == 1
    going.set()
    assert "late" in (await staying).text
    assert len(other.recorder.chunks) == 1


# --- an engine that misbehaves


async def breaks(request: GenerateRequest) -> Any:
    raise ZeroDivisionError("division by zero")


async def fails(request: GenerateRequest) -> Any:
    raise EngineError("The engine is out of memory.")


async def fails_for_good(request: GenerateRequest) -> Any:
    raise BadWeights("The weights are broken.")


async def says_nonsense(request: GenerateRequest) -> Any:
    return {"text": "Yes"}


async def says_nothing(request: GenerateRequest) -> Any:
    return None


def says(**garbage: Any) -> Callable[[GenerateRequest], Awaitable[Any]]:
    """An engine whose answer is wrong in this."""

    async def say(request: GenerateRequest) -> Any:
        return replace(whole_answer("Yes"), **garbage)

    return say


class BadWeights(EngineError):
    """Not worth a retry."""

    retryable = False


@every_api
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("does", "status", "sentence"),
    [
        (breaks, 503, "ZeroDivisionError: division by zero"),
        (fails, 503, "out of memory"),
        (fails_for_good, 500, "weights are broken"),
        (says_nonsense, 503, "answered with dict, not with a Generation"),
        (says_nothing, 503, "answered with NoneType"),
        (says(token_ids=(1 << 20,) * 4), 503, "it has the token 1048576"),
        (says(logprobs=(float("nan"),) * 4), 503, "must be finite"),
        (says(versions=()), 503, "and 0 versions"),
        (says(token_ids=(65,) * 9999, logprobs=(-1.0,) * 9999, versions=(1,) * 9999), 503, "tokens, where"),
    ],
)
async def test_an_engine_that_fails_is_told_in_the_apis_own_shape(
    session: ServedSession,
    engine: ProgrammableEngine,
    path: str,
    stream: bool,
    does: Callable[[GenerateRequest], Awaitable[Any]],
    status: int,
    sentence: str,
) -> None:
    engine.does = does
    answer = await post(session, path, json.dumps({**ASKED[path], "stream": stream}).encode())
    refused(answer, status, path, sentence)
    assert len(session.recorder.chunks) == 1


async def test_of_several_answers_that_fail_the_first_fault_is_told(
    session: ServedSession, engine: ProgrammableEngine
) -> None:
    engine.does = fails
    body = json.dumps({**ASKED["chat/completions"], "n": 3}).encode()
    refused(await post(session, "chat/completions", body), 503, "chat/completions", "out of memory")


@every_api
async def test_an_error_in_a_stream_that_has_begun_is_an_event_of_it(
    session: ServedSession, engine: ProgrammableEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("ale_endpoint.http.PATIENCE_S", 0.05)

    async def late(request: GenerateRequest) -> Any:
        await asyncio.sleep(0.3)
        raise ZeroDivisionError("division by zero")

    engine.does = late
    answer = await post(session, path, json.dumps({**ASKED[path], "stream": True}).encode())
    assert answer.status_code == 200
    assert "division by zero" in answer.text
    assert ("event: error" in answer.text) == (path != "chat/completions")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_stalls_is_ended_with_the_session(
    served: tuple[ServedSessions, ProgrammableEngine],
    session: ServedSession,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    monkeypatch.setattr("ale_endpoint.http.PATIENCE_S", 0.2)
    endpoint, engine = served
    began, ended = asyncio.Event(), asyncio.Event()

    async def stall(request: GenerateRequest) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    engine.does = stall
    async with httpx.AsyncClient(trust_env=False, timeout=60, headers={"x-api-key": session.api_key}) as client:
        body = {**ASKED["chat/completions"], "stream": stream}
        request = client.build_request("POST", f"{session.base_url}/chat/completions", json=body)
        asking = asyncio.create_task(client.send(request, stream=True))
        async with asyncio.timeout(30):
            await (asking if stream else began.wait())  # a stream's answer begins once the patience is at its end
            endpoint.close(session)
            answer = await asking
            text = (await answer.aread()).decode()
            await ended.wait()
    assert "The episode has ended" in text
    assert answer.status_code == (200 if stream else 400)


@every_api
async def test_an_unknown_or_closed_session_is_told_so(
    served: tuple[ServedSessions, ProgrammableEngine], session: ServedSession, path: str
) -> None:
    refused(await post(session, path, None, **{"x-api-key": "guess"}), 401, path, "no open session")
    served[0].close(session)
    refused(await post(session, path), 401, path, "no open session")
