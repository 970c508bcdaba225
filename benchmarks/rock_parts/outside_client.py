"""ROCK's own client (`rl-rock`) in a process of its own: `python outside_client.py URL WHAT NUMBER FOLDER`.

It is no module of the benchmark: that is called `rock` as the client's package is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from rock.actions import Command, CreateBashSessionRequest, UploadRequest, WriteFileRequest
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig

MIB = 1 << 20
PORT, MESSAGE = 8080, b"x" * 100
ECHO = f"""
import base64, hashlib, socketserver

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while (line := self.rfile.readline().strip()):
            if line.lower().startswith(b"sec-websocket-key:"):
                key = line.partition(b":")[2].strip() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest())
        self.wfile.write(b"HTTP/1.1 101 Switching\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n")
        self.wfile.write(b"Sec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
        while (head := self.rfile.read(6)) and head[0] & 15 != 8:
            masked = self.rfile.read(head[1] & 127)
            data = bytes(byte ^ head[2 + at % 4] for at, byte in enumerate(masked))
            self.wfile.write(bytes([head[0], len(data)]) + data)

socketserver.ThreadingTCPServer.allow_reuse_address = True
server = socketserver.ThreadingTCPServer(("127.0.0.1", {PORT}), Echo)
open("ready", "w").close()
server.serve_forever()
"""
"""A server of WebSockets that sends short messages back."""


def box_of(url: str, mib: int = 64) -> Sandbox:
    """A sandbox that is not started yet, of which many are promised on a small machine; its files lie in memory."""
    size, of_cpus = f"{mib}m", {"cpus": 0.01, "limit_cpus": 2}
    return Sandbox(SandboxConfig(base_url=url, memory=size, disk=size, startup_timeout=600, **of_cpus))


def in_ms(times: list[float]) -> str:
    """Describe times in seconds."""
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return f"P50 {cuts[49] * 1e3:.1f} ms, P99 {cuts[98] * 1e3:.1f} ms"


async def timed(times: list[float], work: Awaitable[object]) -> object:
    """Await some work and note how long it took."""
    began = time.perf_counter()
    result = await work
    times.append(time.perf_counter() - began)
    return result


async def start_sandboxes(url: str, count: int, folder: Path) -> None:
    """Start many at once; run a command and open a session in each, at once; stop all at once."""
    boxes = [box_of(url) for _ in range(count)]
    began = time.perf_counter()
    starts: list[float] = []
    await asyncio.gather(*(timed(starts, box.start()) for box in boxes))
    print(f"sandboxes started at once     {count} in {time.perf_counter() - began:.2f} s: {in_ms(starts)}")

    async def use(number: int, box: Sandbox) -> None:
        done = await box.execute(Command(command=["echo", str(number)]))
        assert (done.stdout, done.exit_code) == (f"{number}\n", 0), done
        await box.create_session(CreateBashSessionRequest(session="s"))
        await box.arun(f"x={number}", session="s")
        assert (await box.arun("echo $x", session="s")).output == str(number)

    uses: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(timed(uses, use(*each)) for each in enumerate(boxes)))
    print(f"  a command, a session with 2 {count} in {time.perf_counter() - began:.2f} s: {in_ms(uses)}")
    began = time.perf_counter()
    await asyncio.gather(*(box.stop() for box in boxes))
    print(f"  stopped                     {count} in {time.perf_counter() - began:.2f} s")


async def upload(url: str, mib: int, folder: Path) -> None:
    """Upload a large file, and compare its checksum there."""
    source, digest = folder / "large", hashlib.sha256()
    with source.open("wb") as file:
        for number in range(mib):
            piece = number.to_bytes(8, "big") * (MIB // 8)
            digest.update(piece)
            file.write(piece)
    box = box_of(url, mib + 512)
    await box.start()
    began = time.perf_counter()
    sent = await box.upload(UploadRequest(source_path=str(source), target_path="large"))
    took = time.perf_counter() - began
    assert sent.success, sent.message
    done = await box.execute(Command(command=["sha256sum", "large"]))
    assert done.stdout.split()[:1] == [digest.hexdigest()], done
    await box.stop()
    print(f"upload                        {mib} MiB in {took:.2f} s: {mib / took:.0f} MiB/s")


async def use_websocket(url: str, count: int, folder: Path) -> None:
    """Send messages through the proxy's WebSocket to a program in a sandbox, one after the other."""
    box = box_of(url, 256)
    await box.start()
    await box.write_file(WriteFileRequest(content=ECHO, path="echo.py"))
    serve = "python3 echo.py >log 2>&1 & until [ -e ready ]; do sleep 0.05; done"
    assert (await box.execute(Command(command=["sh", "-c", serve], timeout=60))).exit_code == 0
    times: list[float] = []
    there = f"{url}/apis/envs/sandbox/v1/sandboxes/{box.sandbox_id}/proxy/port/{PORT}/"
    async with aiohttp.ClientSession() as session, session.ws_connect(there) as socket:

        async def send() -> None:
            await socket.send_bytes(MESSAGE)
            assert await socket.receive_bytes() == MESSAGE

        for _ in range(count):
            await timed(times, send())
    await box.stop()
    print(f"WebSocket, there and back     {count} messages: {in_ms(times)}")


WORK: dict[str, Callable[[str, int, Path], Awaitable[None]]] = {
    "sandboxes": start_sandboxes,
    "upload": upload,
    "websocket": use_websocket,
}

if __name__ == "__main__":
    logging.disable(logging.WARNING)  # it warns of each upload that it has no object storage
    url, what, number, folder = sys.argv[1:]
    asyncio.run(WORK[what](url, int(number), Path(folder)))
