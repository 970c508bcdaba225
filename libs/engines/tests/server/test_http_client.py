"""The HTTP client tells a server that is gone from one that refuses, each by a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from ale.errors import EngineError
from ale.specs.engine import Generation
from ale_engines.server import http_client
from ale_engines.server.http_client import ConnectionLost, ServerClient
from ale_engines.server.metrics import Usage, sum_samples
from ale_engines.server.sampled_tokens import Sampled


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServerClient]:
    """A client of a server at a Unix socket, which echoes, names the connection, refuses, is overloaded, or never
    answers."""

    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"got": await request.json()})

    async def connection(request: web.Request) -> web.Response:
        if request.transport not in transports:
            transports.append(request.transport)
        return web.json_response(transports.index(request.transport))

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "the prompt is too long."}}, status=400)

    async def dying(request: web.Request) -> web.Response:
        return web.Response(text="the engine is dead", status=503)

    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def broken(request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async def lines(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for number in range(await request.json()):
            await answer.write(b"%d\n" % number)
        return answer

    async def broken_lines(request: web.Request) -> web.StreamResponse:
        await lines(request)
        assert request.transport is not None
        request.transport.close()  # before the end is sent
        return web.StreamResponse()

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"0\n")
        await asyncio.Event().wait()
        return answer

    transports: list[object] = []
    app = web.Application()
    for handler in (echo, connection, refuse, dying, never, broken, lines, broken_lines, endless):
        app.router.add_post(f"/{handler.__name__}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "socket")).start()
    async with ServerClient("server 0", "http://localhost", tmp_path / "socket") as client:
        yield client
    await runner.cleanup()


async def test_it_sends_and_reads_json(client: ServerClient) -> None:
    assert await client.post("/echo", {"token_ids": (1, 2)}) == {"got": {"token_ids": [1, 2]}}


async def test_many_requests_run_at_once_whatever_the_proxy_of_the_environment(
    client: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    waiting = [asyncio.ensure_future(client.post("/never")) for _ in range(150)]
    assert await client.post("/echo", 1) == {"got": 1}
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_connection_is_used_again_but_not_after_its_idle_time(
    client: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http_client.IDLE_S < 5, "uvicorn closes connections that were idle for 5 s"
    first = await client.post("/connection")
    assert await client.post("/connection") == first
    await client.close()
    monkeypatch.setattr(http_client, "IDLE_S", 0.05)
    await client.start()
    first = await client.post("/connection")
    await asyncio.sleep(0.2)
    assert await client.post("/connection") != first


async def test_a_refusal_has_the_words_of_the_server(client: ServerClient) -> None:
    with pytest.raises(EngineError, match=r"server 0 refused /refuse \(400\): the prompt is too long\.$") as refusal:
        await client.post("/refuse")
    assert not isinstance(refusal.value, ConnectionLost)
    with pytest.raises(EngineError, match="not JSON"):
        await client.post("/broken")


async def test_a_server_that_dies_or_does_not_answer_is_a_lost_connection(client: ServerClient, tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match="does not serve /dying: the engine is dead"):
        await client.post("/dying")
    with pytest.raises(ConnectionLost, match=r"did not answer /never within 0\.05 s"):
        await client.post("/never", timeout_s=0.05)
    async with ServerClient("server 1", "http://localhost", tmp_path / "none") as nobody:
        with pytest.raises(ConnectionLost, match="server 1 cannot be reached"):
            await nobody.post("/echo")
    with pytest.raises(ConnectionLost, match="is not connected"):
        await nobody.post("/echo")


async def test_lines_are_read_as_they_come_and_those_before_a_loss_are_kept(client: ServerClient) -> None:
    assert [line async for line in client.read_lines("/lines", 3, 5)] == [b"0\n", b"1\n", b"2\n"]
    lines = client.read_lines("/broken_lines", 2, 5)
    assert [await anext(lines), await anext(lines)] == [b"0\n", b"1\n"]
    with pytest.raises(ConnectionLost, match="cannot be reached for /broken_lines"):
        await anext(lines)
    with pytest.raises(EngineError, match="the prompt is too long"):
        [line async for line in client.read_lines("/refuse", None, 5)]


async def test_closing_ends_an_answer_that_is_being_read(client: ServerClient) -> None:
    lines = client.read_lines("/endless", None, 60)
    assert await anext(lines) == b"0\n"
    reading = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(ConnectionLost, match="cannot be reached for /endless"):
        await asyncio.wait_for(reading, 5)


def test_what_was_sampled_grows_by_parts_of_one_length() -> None:
    sampled = Sampled("server 0")
    sampled.add([1], [-0.5], [0])
    sampled.add([2, 3], [-0.25, -1.0], [0, 1])
    assert sampled.as_generation("stop") == Generation((1, 2, 3), (-0.5, -0.25, -1.0), (0, 0, 1), "stop")
    with pytest.raises(EngineError, match="server 0 answered 1 tokens with 2 log-probabilities and 1 versions"):
        sampled.add([4], [-1.0, -1.0], [1])
    assert len(sampled) == 3


def test_metrics_are_summed_up_over_their_labels() -> None:
    text = """# HELP a:tokens_total Tokens.
a:tokens_total{engine="0",model="x"} 3.0
a:tokens_total{engine="1",model="x"} 4.5
a:other 7
a:running 1e2
"""
    assert sum_samples(text, {"a:tokens_total": "tokens", "a:running": "running"}) == {"tokens": 7.5, "running": 100}


def test_slot_use_is_the_share_of_slots_while_something_runs() -> None:
    usage = Usage(slots=4)
    assert usage.metrics()["slot_use"] == 0
    with usage.running(3), usage.running(4):
        pass
    metrics = usage.metrics()
    assert metrics["busy_s"] > 0
    assert 0.25 <= metrics["slot_use"] <= 0.5
