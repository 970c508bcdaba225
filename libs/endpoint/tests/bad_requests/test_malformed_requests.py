"""Requests that are no JSON, no HTTP or without a valid key are refused, and neither record nor server suffers."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import httpx
import pytest
from raw_requests import ASKED, PATHS, answered, connection, ends, every_api, head, post, refused
from served_sessions import ServedSession, ServedSessions

from ale.specs.engine import GenerateRequest
from ale_testing.fake_engines import ProgrammableEngine, whole_answer


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
            assert b"ud83d" not in answer.content.lower()
            assert "\ufffd" in answer.content.decode("utf-8")


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


@every_api
async def test_an_unknown_or_closed_session_is_told_so(
    served: tuple[ServedSessions, ProgrammableEngine], session: ServedSession, path: str
) -> None:
    refused(await post(session, path, None, **{"x-api-key": "guess"}), 401, path, "no open session")
    served[0].close(session)
    refused(await post(session, path), 401, path, "no open session")
