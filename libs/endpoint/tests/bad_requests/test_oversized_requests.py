"""Requests that are too large are refused early, without taking memory."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from raw_requests import ASKED, USER, answered, connection, every_api, head, post, refused
from served_sessions import ServedSession


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
    began = time.process_time()
    body = json.dumps({"messages": [{**USER[0], "role": role}] * 40_000}).encode()
    answer = await post(session, "chat/completions", body)
    refused(answer, 400, "chat/completions", "leaves no room")
    assert time.process_time() - began < 12, "however busy the machine is"


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
