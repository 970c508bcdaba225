"""Programs that listen in a sandbox are reached through the service: HTTP, WebSockets, TCP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx
import pytest
from rock.actions import Command
from service_process import Service, StartSandbox
from yarl import URL

pytestmark = pytest.mark.bwrap
BASE = "/apis/envs/sandbox/v1/sandboxes"
SERVER = """
import base64, hashlib, http.server, json, socket, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        if self.headers.get("Upgrade"):
            return self.websocket()
        if self.path == "/large":
            self.send_response(200); self.send_header("Content-Length", str(1 << 25)); self.end_headers()
            for _ in range(512): self.wfile.write(bytes(1 << 16))
            return
        if self.path == "/endless":
            self.send_response(200); self.send_header("Connection", "close"); self.end_headers()
            try:
                while True: self.wfile.write(bytes(1 << 16)); open("written", "a").write("x")
            except OSError:
                open("broken", "w").write("x")
            return
        if self.path == "/late":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for word in (b"first", b"second"):
                self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(word), word)); self.wfile.flush()
                while word == b"first" and not __import__("os").path.exists("go"): time.sleep(0.01)
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        self.answer(b"")
    def do_POST(self):
        if self.headers.get("Transfer-Encoding"):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(body)
    do_PUT = do_PATCH = do_DELETE = do_POST
    def answer(self, body):
        data = json.dumps({"method": self.command, "path": self.path, "headers": self.headers.items(),
                           "size": len(body), "sha": hashlib.sha256(body).hexdigest()}).encode()
        self.send_response(418 if self.path == "/teapot" else 200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Set-Cookie", "a=1"); self.send_header("Set-Cookie", "b=2")
        self.send_header("Connection", "X-Secret-Hop"); self.send_header("X-Secret-Hop", "1")
        self.end_headers()
        self.wfile.write(data)
    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101); self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        if self.headers.get("Sec-WebSocket-Protocol"): self.send_header("Sec-WebSocket-Protocol", "second")
        self.end_headers()
        while True:
            head = self.rfile.read(2)
            size = head[1] & 127
            if size > 125: size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
            if data == b"bye": head, data = bytes([0x88]), (4001).to_bytes(2, "big")
            size = len(data)
            long = bytes([size]) if size < 126 else bytes([126]) + size.to_bytes(2, "big")
            self.wfile.write(head[:1] + long + data)
            if head[0] & 15 == 8: break
        self.close_connection = True

def echo(listener):
    while True:
        connection = listener.accept()[0]
        def serve():
            with connection:
                while data := connection.recv(65536): connection.sendall(data)
        threading.Thread(target=serve, daemon=True).start()

threading.Thread(target=echo, args=(socket.create_server(("127.0.0.1", 3000)),), daemon=True).start()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler)
open("ready", "w").write("x")
server.serve_forever()
"""


class Proxied:
    """A sandbox with a server in it."""

    def __init__(self, service: Service, box: Any) -> None:
        self.box, self.path = box, f"{BASE}/{box.sandbox_id}"
        self.http = httpx.AsyncClient(base_url=service.url, timeout=60)
        self.url = service.url + self.path


@pytest.fixture
async def box(service: Service, start: StartSandbox) -> AsyncIterator[Proxied]:
    """One whose server listens."""
    box = await start()
    await box.write_file_by_path(SERVER, "server.py")
    started = Command(command=["sh", "-c", "python3 server.py >log 2>&1 & while ! test -e ready; do sleep 0.01; done"])
    assert (await box.execute(started)).exit_code == 0
    proxied = Proxied(service, box)
    async with proxied.http:
        yield proxied


async def test_a_request_arrives_as_it_was_sent(box: Proxied) -> None:
    answer = await box.http.patch(
        f"{box.path}/proxy/a%2Fb/c?x=1&y=%20", content=b"body", headers={"X-Own": "1", "Cookie": "c=3"}
    )
    seen = answer.json()
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert (seen["method"], seen["path"], seen["size"]) == ("PATCH", "/a%2Fb/c?x=1&y=%20", 4)
    assert (headers["x-own"], headers["cookie"], headers["host"]) == ("1", "c=3", "127.0.0.1:8080")
    assert not {name for name in headers if name.startswith("x-rock")}
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert "x-secret-hop" not in answer.headers
    assert "sandbox" in answer.headers["content-security-policy"]
    assert (await box.http.get(f"{box.path}/proxy/teapot")).status_code == 418
    assert (await box.http.get(f"{box.path}/proxy")).json()["path"] == "/"


async def test_headers_of_the_connection_do_not_pass(box: Proxied) -> None:
    answer = await box.http.get(
        f"{box.path}/proxy/", headers={"Connection": "X-Hop", "X-Hop": "1", "TE": "trailers", "Upgrade": "h2c"}
    )
    assert not {"x-hop", "te", "upgrade"} & {name.lower() for name, _ in answer.json()["headers"]}


async def test_bodies_have_no_limit_and_come_through_whole(box: Proxied) -> None:
    async def body() -> AsyncIterator[bytes]:
        for number in range(80):
            yield bytes([number]) * (1 << 20)

    answer = await box.http.post(f"{box.path}/proxy/", content=body())
    assert answer.json()["size"] == 80 << 20
    assert len((await box.http.get(f"{box.path}/proxy/large")).content) == 1 << 25


async def test_an_answer_comes_piece_by_piece(box: Proxied) -> None:
    async with box.http.stream("GET", f"{box.path}/proxy/late") as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"first"
        await box.box.execute(Command(command=["touch", "go"]))
        assert await anext(pieces) == b"second"


async def test_a_slow_reader_holds_up_the_program_and_a_hang_up_ends_its_connection(box: Proxied) -> None:
    async with box.http.stream("GET", f"{box.path}/proxy/endless") as answer:
        await anext(answer.aiter_raw())
        sizes = [""]
        while sizes[-3:] != [sizes[-1]] * 3:  # until then what is between the two takes it
            await asyncio.sleep(1)
            sizes.append((await box.box.execute(Command(command=["wc", "-c", "written"]))).stdout)
            assert len(sizes) < 60, "it goes on writing though nobody reads"
    waiting = ["sh", "-c", "while ! test -e broken; do sleep 0.05; done"]
    assert (await box.box.execute(Command(command=waiting))).exit_code == 0


@pytest.mark.parametrize("path", ["/proxy/port/9009/", "/proxy/port/3000/", "/vnc/"])
async def test_a_port_that_does_not_speak_http_says_so(box: Proxied, path: str) -> None:
    answer = await box.http.get(box.path + path)
    assert answer.status_code == 502
    assert answer.json()["detail"].startswith("Nothing answers at the port")


WAYS = {
    "path": lambda port: (f"/proxy/port/{port}/p", {}),
    "header": lambda port: ("/proxy/p", {"X-ROCK-Target-Port": port}),
    "query": lambda port: (f"/proxy/p?rock_target_port={port}", {}),
}


async def test_a_port_is_named_by_path_header_or_query(box: Proxied) -> None:
    for way in WAYS.values():
        path, headers = way("8080")
        answer = (await box.http.get(box.path + path, headers=headers)).json()
        assert answer["path"].partition("?")[0] == "/p"
        async with aiohttp.ClientSession(headers=headers) as session, session.ws_connect(box.url + path) as socket:
            await socket.send_str("text")
            assert (await socket.receive()).data == "text"
        path, headers = way("9009")
        assert "port 9009" in (await box.http.get(box.path + path, headers=headers)).json()["detail"]


async def test_a_port_that_may_not_be_reached_is_refused(box: Proxied) -> None:
    refusals = {"0": "is no port", "65536": "is no port", "-1": "is no port", "22": "below 1024", "1023": "below 1024"}
    for way, (port, sentence) in itertools.product(WAYS.values(), refusals.items()):
        path, headers = way(port)
        answer = await box.http.get(box.path + path, headers=headers)
        assert (answer.status_code, sentence in answer.json()["detail"]) == (400, True)
        assert await status_of_websocket(box.url + path, headers) == 400


async def test_a_port_that_is_named_in_two_ways_is_refused(box: Proxied) -> None:
    header = {"X-ROCK-Target-Port": "8080"}
    for path, headers in (
        ("/proxy/port/8080/?rock_target_port=8080", {}),
        ("/proxy/?rock_target_port=8080", header),
        ("/proxy/port/8080/", header),
    ):
        answer = await box.http.get(box.path + path, headers=headers)
        assert (answer.status_code, "more than once" in answer.json()["detail"]) == (400, True)
        assert await status_of_websocket(box.url + path, headers) == 400


async def status_of_websocket(url: str, headers: dict[str, str]) -> int:
    """Return the status with which a WebSocket is refused."""
    async with aiohttp.ClientSession(headers=headers) as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url)
        return refused.value.status


async def test_a_path_of_the_program_may_begin_as_one_with_a_port(box: Proxied) -> None:
    assert (await box.http.get(f"{box.path}/proxy/port/x/y")).json()["path"] == "/port/x/y"


async def test_the_screen_of_a_sandbox_is_at_its_own_path(box: Proxied) -> None:
    """On ROCK it is the program at port 8006, whatever else the request names."""
    listen = "python3 -m http.server 8006 >/dev/null 2>&1 & until (: </dev/tcp/127.0.0.1/8006) 2>/dev/null; do :; done"
    assert (await box.box.execute(Command(command=["bash", "-c", listen]))).exit_code == 0
    answer = await box.http.get(f"{box.path}/vnc/server.py", headers={"X-ROCK-Target-Port": "8080"})
    assert (answer.status_code, answer.text) == (200, SERVER)


async def test_nothing_can_be_slipped_into_the_request(service: Service, box: Proxied) -> None:
    slipped = {"X-Rock-Path": "/other", "X-Rock-Authorization": "Bearer stolen"}
    seen = (await box.http.get(f"{box.path}/proxy/own", headers=slipped)).json()
    assert seen["path"] == "/own"
    assert "stolen" not in str(seen)
    own = (await box.http.get(f"{box.path}/proxy/own", headers={"Authorization": "Bearer of-the-program"})).json()
    assert ["Authorization", "Bearer of-the-program"] in [[name.title(), value] for name, value in own["headers"]]
    dots = URL(f"{box.url}/proxy/a/../../../other/proxy/?x", encoded=True)
    async with aiohttp.ClientSession() as session, session.get(dots) as answer:
        assert (await answer.json(content_type=None))["path"] == "/a/../../../other/proxy/?x"
    foreign = await box.http.post(f"{box.path}/proxy/", headers={"Origin": "http://elsewhere.example"})
    assert foreign.status_code == 403


async def test_a_websocket_passes(box: Proxied) -> None:
    protocols = ["first", "second"]
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{box.url}/proxy/ws", protocols=protocols) as socket:
        assert socket.protocol == "second"
        await socket.send_str("text")
        assert (await socket.receive()).data == "text"
        await socket.send_bytes(bytes(50_000))
        assert (await socket.receive()).data == bytes(50_000)
        await socket.send_str("bye")
        assert (await socket.receive()).type == aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 4001
    assert await status_of_websocket(f"{box.url}/proxy/port/9009/", {}) == 502


async def test_a_websocket_carries_a_tcp_connection(box: Proxied) -> None:
    sent = bytes(range(256)) * 20_000
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{box.url}/portforward?port=3000") as socket:

            async def send() -> None:
                for at in range(0, len(sent), 100_000):
                    await socket.send_bytes(sent[at : at + 100_000])

            async with asyncio.TaskGroup() as group:
                group.create_task(send())
                received = b""
                while len(received) < len(sent):
                    received += (await socket.receive()).data
            assert received == sent
        for query, status in (("?port=9009", 502), ("?port=22", 400), ("?port=x", 400), ("", 400)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{box.url}/portforward{query}")
            assert refused.value.status == status


async def test_the_way_ends_with_the_sandbox(box: Proxied) -> None:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{box.url}/portforward?port=3000") as socket:
        await box.box.stop()
        assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    answer = await box.http.get(f"{box.path}/proxy/")
    assert (answer.status_code, "is stopped" in answer.json()["detail"]) == (400, True)
    assert (await box.http.get(f"{BASE}/unknown/proxy/")).status_code == 404
    with contextlib.suppress(Exception):
        await box.box.delete()
