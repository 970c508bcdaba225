"""An upstream that answers at once, and the programs that forward to it: `ale endpoint serve` and LiteLLM's proxy.

Each is one process of its own on this machine. The upstream is a few lines on asyncio, so that its share of the two
cores is small. Every proxy ends with the context in which it was started."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

INSTALL = "python3 -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]==1.81.10'"
UPSTREAM = r"""
import asyncio, json, re

MADE = {"index": 0, "message": {"role": "assistant", "content": "Yes"}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
BODY = json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "policy", "choices": [MADE],
                   "usage": USAGE}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

class Connection(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.data = transport, b""

    def data_received(self, data):
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            whole = end + 4 + int(LENGTH.search(self.data, 0, end + 2)[1])
            if len(self.data) < whole:
                return
            self.data = self.data[whole:]
            self.transport.write(ANSWER)

async def main():
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(f"listening at http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@asynccontextmanager
async def upstream() -> AsyncIterator[str]:
    """Start the upstream and yield the URL of its API."""
    async with _running([sys.executable, "-c", UPSTREAM]) as printed:
        yield await _url_in(printed)


@asynccontextmanager
async def ale(url: str, folder: Path) -> AsyncIterator[str]:
    """Start `ale endpoint serve`, which records as it always does; yield the URL of its API."""
    program, recording = Path(sys.executable).with_name("ale"), folder / "calls.jsonl"
    command = [program, "endpoint", "serve", "--upstream", url, "--port", "0", "--out", recording]
    async with _running(command) as printed:
        yield await _url_in(printed)


@asynccontextmanager
async def litellm(python: str, url: str, folder: Path) -> AsyncIterator[str]:
    """Start LiteLLM's proxy with one worker, as it is by default; yield the URL of its API once it answers."""
    program = Path(python).parent / "litellm"
    if not program.exists():
        raise SystemExit(f"There is no litellm beside {python}. Install it, and name that interpreter: {INSTALL}")
    model = {"model": "openai/policy", "api_base": url, "api_key": "none"}
    (folder / "config.yaml").write_text(json.dumps({"model_list": [{"model_name": "policy", "litellm_params": model}]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
    command = [program, "--config", folder / "config.yaml", "--port", str(port), "--host", "127.0.0.1"]
    async with _running(command, **settings) as printed:
        for _ in range(300):
            try:
                alive = f"http://127.0.0.1:{port}/health/liveliness"
                await asyncio.to_thread(urllib.request.urlopen, alive, None, 2)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                yield f"http://127.0.0.1:{port}/v1"
                return
        raise SystemExit("litellm does not answer: " + (await asyncio.to_thread(printed.read_text))[-2000:])


@asynccontextmanager
async def _running(command: Sequence[str | Path], **settings: str) -> AsyncIterator[Path]:
    """Run a program and yield the file that it prints to; it and all that it started end with the block."""
    with tempfile.NamedTemporaryFile(prefix="ale-bench-") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, env={**os.environ, **settings}, start_new_session=True
        )
        try:
            yield Path(log.name)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _url_in(printed: Path) -> str:
    """Wait for the URL of an API that a program prints."""
    for _ in range(300):
        text = await asyncio.to_thread(printed.read_text)
        found = re.search(r"listening at\s+(http://\S+/v1)", text)
        if found is not None:
            return found[1]
        await asyncio.sleep(0.1)
    raise SystemExit(f"No program listens; this was printed: {text[-2000:]}")
