"""Requests that are too large, too slow or broken: refused, at any route, and the next request is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attack_tools import (
    SETTINGS,
    TOKENS,
    operations,
    repeated,
    request_head,
    send_bytes,
    sentence_of,
    shown,
)

from ale_rock.admin.settings import Settings
from ale_rock.app import make_app
from ale_rock.http.server import listener_at, serving, url_of
from ale_rock.schemas import ALE_BASE, ROCK_BASE

BROKEN = {
    "nothing": b"",
    "cut short": b'{"sandbox_id": "honest", "comma',
    "a list": b"[]",
    "null": b"null",
    "a text": b'"honest"',
    "no UTF-8": b'{"sandbox_id": "\xff\xfe"}',
    "UTF-16": '{"nobody": "honest"}'.encode("utf-16"),
    "half a character": b'{"sandbox_id": "\\ud800"}',
    "a list in place of the id": b'{"sandbox_id": ["honest"]}',
    "deep": b"[" * 100_000,
    "deep in a field": b'{"sandbox_id": "honest", "env": ' + b'{"a":' * 50_000,
    "a long number": b'{"sandbox_id": ' + b"9" * 100_000 + b"}",
    "no number": b'{"sandbox_id": NaN}',
    "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
}


@asynccontextmanager
async def service_that_waits(folder: Path, head_s: float, body_s: float) -> AsyncIterator[str]:
    """The URL of a service that waits so long for the head and the body of a request."""
    app = make_app(Settings(database=f"sqlite:///{folder}/rock.sqlite", body_timeout_s=body_s))
    listener = listener_at("127.0.0.1", 0)
    async with serving(app, listener, head_s=head_s):
        yield url_of(listener)


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[str]:
    """One for tests of requests that are too slow."""
    async with service_that_waits(tmp_path, 1.0, 0.2) as url:
        yield url


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[str]:
    """One for tests of what is wrong with a request at any speed."""
    async with service_that_waits(tmp_path, 60.0, 60.0) as url:
        yield url


async def answers(url: str) -> bool:
    """Whether the service answers a plain request."""
    return b"200 OK" in await send_bytes(url, [b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"])


async def test_broken_json_is_refused_by_every_route(serve: Any) -> None:
    async with serve(**SETTINGS) as admin:
        sandbox_id = await admin.start(shown("admin"), sandbox_id="honest")
        for each in await operations(admin.http):
            if each.body is None:
                continue
            name = "worker" if "/workers/" in each.path else "admin"
            headers = {**shown(name), "Content-Type": "application/json"}
            for what, body in BROKEN.items():
                if each.path == "/sandboxes/{sandbox_id}/pause" and not body:
                    continue  # E2B's older SDKs send none
                path = each.path.replace("{sandbox_id}", sandbox_id)
                answer = await admin.http.request(each.method, path, content=body, headers=headers)
                if each.path.startswith(f"{ALE_BASE}/sandboxes/") and (
                    answer.status_code >= 500 or answer.text == "404: Not Found"
                ):
                    continue  # the worker judges that body, and a simulated one does not
                if each.path != "/env/list" or answer.status_code != 200:
                    assert sentence_of(answer), (str(each), what)
        assert (await admin.http.get("/health")).status_code == 200
        assert list(admin.service.fleet.live) == [sandbox_id]


@pytest.mark.parametrize(
    "path", [f"{ROCK_BASE}/execute", f"{ROCK_BASE}/upload", "/env/list", f"{ALE_BASE}/sandboxes/a/exec"]
)
@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": "9" * 18},
        {"Content-Length": "9" * 400},
        {"Content-Length": "-1"},
        {"Content-Length": "1e3"},
        {"Content-Length": "5\r\nContent-Length: 6"},
        {"Content-Length": "5", "Transfer-Encoding": "chunked"},
        {"Transfer-Encoding": "chunked, identity"},
    ],
)
async def test_a_length_that_is_none_is_refused(patient: str, path: str, headers: dict[str, str]) -> None:
    answer = await send_bytes(patient, [request_head(path, **headers), b"hello"])
    assert b'"Success"' not in answer
    assert b" 500 " not in answer.partition(b"\r\n")[0]
    assert await answers(patient)


async def test_a_body_without_a_stated_length_is_cut_off(serve: Any) -> None:
    async with serve(body_limit_bytes=10_000, upload_limit_bytes=20_000) as admin:
        sandbox_id = await admin.start()
        chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
        for path, limit in (
            (f"{ROCK_BASE}/execute", 10_000),
            ("/env/list", 10_000),
            ("/apis/workers/v1/heartbeat", 10_000),
            ("/apis/workers/v1/register", 10_000),
            ("/apis/v1/envs/gem/make", 10_000),
            (f"{ALE_BASE}/sandboxes/{sandbox_id}/exec", 10_000),
        ):
            head = request_head(path, **{"Transfer-Encoding": "chunked", "Content-Type": "application/json"})
            answer = await send_bytes(admin.url, [head, *repeated(chunk, 11)])
            assert f"larger than {limit} bytes".encode() in answer, (path, answer)
        assert (await admin.status(sandbox_id))["is_alive"]


async def test_a_head_that_trickles_is_cut_off(hasty: str) -> None:
    slow = [b"POST /env/list HTTP/1.1\r\n", b"Host: localhost\r\n", *repeated(b"X-A: b\r\n", 100_000)]
    async with asyncio.timeout(30):
        answer = await send_bytes(hasty, slow, pause_s=0.05)
    assert b"408" in answer.partition(b"\r\n")[0]
    assert b"too slowly" in answer
    assert await answers(hasty)


async def test_a_connection_that_sends_nothing_is_closed(hasty: str) -> None:
    async with asyncio.timeout(30):
        await send_bytes(hasty, [])
    assert await answers(hasty)


async def test_a_second_request_that_trickles_is_cut_off(hasty: str) -> None:
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with asyncio.timeout(30):
        answer = await send_bytes(hasty, [first, b"GET ", *repeated(b"x", 100_000)], pause_s=0.05)
    assert answer.count(b"HTTP/1.1") == 2
    assert b"too slowly" in answer


@pytest.mark.parametrize("piece", [b"x" * 65_536, b"X-A: b\r\n" * 8_192, b"X-" + b"x" * 65_500 + b": b\r\n"])
async def test_a_head_without_an_end_is_cut_off(patient: str, piece: bytes) -> None:
    start = b"POST /env/list HTTP/1.1\r\nHost: localhost\r\nX-Long: " + (b"" if piece[:1] == b"x" else b"y\r\n")
    answer = await send_bytes(patient, [start, *repeated(piece, 256)])
    assert not answer or b" 431 " in answer.partition(b"\r\n")[0]  # the kernel may drop it: the client still sends
    assert await answers(patient)


@pytest.mark.parametrize(
    "path", [f"{ROCK_BASE}/execute", f"{ROCK_BASE}/upload", "/env/list", "/apis/workers/v1/register"]
)
async def test_a_body_that_trickles_is_cut_off(hasty: str, path: str) -> None:
    kinds = {"Content-Type": "multipart/form-data; boundary=b" if path.endswith("upload") else "application/json"}
    head = request_head(path, **kinds, **{"Content-Length": "100000"})
    start = b'--b\r\nContent-Disposition: form-data; name="sandbox_id"\r\n\r\n' if path.endswith("upload") else b"{"
    async with asyncio.timeout(30):
        answer = await send_bytes(hasty, [head, start, *repeated(b" ", 100_000)], pause_s=0.02)
    assert b"too slowly" in answer
    assert await answers(hasty)


async def test_a_pipeline_of_requests_is_answered_in_order(patient: str) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert (await send_bytes(patient, [one * 200 + last])).count(b"200 OK") == 201


@pytest.mark.parametrize(
    "header",
    [
        b"X-User-Id: anna\x00",
        b"X-User-Id: anna\x0b",
        b"X-User-Id: an\rX-API-Key: " + TOKENS["admin"].encode(),
        b"X-User-Id : anna",
        b"X-User-Id\x00: anna",
        b" X-User-Id: anna",
        b"X-User-Id: " + b"\xc2\x85" * 3,
        b"X-User-Id: " + b"a" * 300,
        b"X-Priority: 9999999999999999999999",
        b"X-Network: none\x01",
    ],
)
async def test_a_header_that_is_none_starts_nothing(serve: Any, header: bytes) -> None:
    async with serve(**SETTINGS) as admin:
        head = (
            f"POST {ROCK_BASE}/start_async HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 14\r\n"
        )
        token = f"Authorization: Bearer {TOKENS['bert']}\r\nContent-Type: application/json\r\n"
        answer = await send_bytes(admin.url, [head.encode() + token.encode() + header + b'\r\n\r\n{"image": "a"}'])
        assert b'"Success"' not in answer
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 200")), answer
        assert not admin.service.fleet.live
        assert await answers(admin.url)


@pytest.mark.parametrize(
    "query",
    [
        "path=/a%0d%0aX-Evil:%201",
        "path=/a HTTP/1.1",
        "path=/a%00",
        "path=/a#b",
        "path=/a&path=/b",
        "path=\x7f",
        "p=" + "a" * 30_000,
    ],
)
async def test_a_query_reaches_the_worker_as_it_is_or_not_at_all(serve: Any, query: str) -> None:
    async with serve(**SETTINGS) as admin:
        sandbox_id = await admin.start(shown("bert"))
        head = (
            f"GET {ALE_BASE}/sandboxes/{sandbox_id}/files?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Bearer {TOKENS['bert']}\r\n\r\n"
        )
        answer = await send_bytes(admin.url, [head.encode()])
        assert answer.startswith(b"HTTP/1.1 4"), answer[:300]
        assert (await admin.get("/get_status", shown("bert"), sandbox_id=sandbox_id))["result"]["is_alive"]
