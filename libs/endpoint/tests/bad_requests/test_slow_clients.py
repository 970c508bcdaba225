"""Clients that are slow or hang up are ended, and neither the record nor other clients suffer."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
from raw_requests import ASKED, answered, connection, ends, every_api, head, post
from served_sessions import ServedSession, ServedSessions

from ale.specs.engine import GenerateRequest, Sampling
from ale_testing.fake_engines import ProgrammableEngine, whole_answer


@pytest.mark.parametrize("after_an_answer", [False, True])
async def test_a_head_that_trickles_is_ended(
    session: ServedSession, monkeypatch: pytest.MonkeyPatch, after_an_answer: bool
) -> None:
    monkeypatch.setattr("ale_endpoint.http_connection.HEAD_S", 0.6)
    began = time.monotonic()
    async with connection(session) as (reader, writer):
        if after_an_answer:
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await answered(reader))[0] == 200
            began = time.monotonic()

        async def trickle() -> None:
            with suppress(ConnectionError):
                for byte in head(session, "x-slow: " + "a" * 400):
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.05)

        slow = asyncio.create_task(trickle())
        await ends(reader, 60)
        assert not slow.done(), "it would go on for twenty seconds"
        slow.cancel()
        assert time.monotonic() - began > 0.4


async def test_a_body_that_trickles_is_answered_with_408_and_its_rest_is_not_waited_for(
    session: ServedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_endpoint.http_app.BODY_S", 0.5)
    monkeypatch.setattr("ale_endpoint.http_connection.HEAD_S", 0.5)
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
        await ends(reader, 60)
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
    port = httpx.URL(session.base_url).port
    for head_s in (600.0, 0.5):
        monkeypatch.setattr("ale_endpoint.http_connection.HEAD_S", head_s)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        try:
            for _, writer in idle[::2]:
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost:")
            if head_s > 1:
                assert (await post(session, "chat/completions")).status_code == 200, "beside all others"
                assert not any(reader.at_eof() for reader, _ in idle)
                continue
            for reader, _ in idle:
                await ends(reader, 60)
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
    monkeypatch.setattr("ale_endpoint.http_app.PATIENCE_S", 0.05)
    monkeypatch.setattr("ale_endpoint.http_app.ALIVE_S", 0.05)
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
        async with asyncio.timeout(60):
            await reader.readuntil(b": the model is at work")
    async with asyncio.timeout(60):
        await ended.wait()
    assert len(session.recorder.chunks) == 1
    going.set()
    assert "late" in (await staying).text
    assert len(other.recorder.chunks) == 1
