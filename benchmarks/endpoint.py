"""Measures the model endpoint with an engine that answers at once: in process, over HTTP, in a long conversation, idle.

The load comes from a separate process on this machine that writes HTTP/1.1 to sockets, so that it uses little CPU.
`--litellm PYTHON` names an interpreter that has `litellm[proxy]`; without it, the comparison is left out. The proxy,
like the endpoint one process, forwards to this endpoint, so its figures include a call of ours."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ale.messages import Message
from ale.registry.hooks import Hooks
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale_endpoint.session_server import SessionServer

INSTALL = "python3 -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]==1.81.10'"
AT_ONCE, REQUESTS, TURNS, TURN_TOKENS = 256, 6000, 100, 600
LOAD = r"""
import asyncio, json, statistics, sys, time

async def main(host, port, path, model, keys, at_once, requests):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    times, left = [], requests
    async def one(key):
        nonlocal left
        reader, writer = await asyncio.open_connection(host, port)
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        head += "content-type: application/json\r\n"
        request = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        while left > 0:
            left -= 1
            began = time.perf_counter()
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            headers = answer.lower().split(b"\r\n")
            size = next(int(line.split(b":")[1]) for line in headers if line.startswith(b"content-length"))
            await reader.readexactly(size)
            times.append(time.perf_counter() - began)
        writer.close()
    began = time.perf_counter()
    await asyncio.gather(*(one(keys[i % len(keys)]) for i in range(at_once)))
    seconds = time.perf_counter() - began
    print(json.dumps({"median_ms": statistics.median(times) * 1e3, "per_s": len(times) / seconds}))

asyncio.run(main(**json.loads(sys.stdin.read())))
"""


class Instant(Driver, InferenceEngine):
    """An engine that answers every request at once with the same four tokens."""

    max_context = 1 << 20
    version = 1

    async def load_model(self, folder: object, tokenizer: object) -> None: ...

    async def load_weights(self, policy: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Generation:
        return ANSWER


TOKENIZER = byte_tokenizer()
IDS = (*TOKENIZER.encode("Yes"), *TOKENIZER.stop_token_ids)
ANSWER = Generation(IDS, (-0.1,) * len(IDS), (1,) * len(IDS), "stop")


def open_session(endpoint: Sessions, name: str) -> RecordedSession:
    """Open a session with very large limits."""
    return endpoint.open(name, Sampling(), max_calls=1 << 30, max_context=1 << 20)


async def load(url: str, keys: list[str], at_once: int, requests: int, model: str = "policy") -> dict[str, float]:
    """Run the load generator and return its measurements."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    path = "/" + url.removeprefix("http://").partition("/")[2] + "/chat/completions"
    asked = {
        "host": host,
        "port": int(port),
        "path": path,
        "model": model,
        "keys": keys,
        "at_once": at_once,
        "requests": requests,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOAD, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(json.dumps(asked).encode())
    return dict(json.loads(output))


async def in_process(endpoint: Sessions) -> float:
    """Measure the milliseconds of a call in a short conversation."""
    times = []
    for i in range(500):
        session = open_session(endpoint, f"p{i}")
        began = time.perf_counter()
        await session.chat([Message("user", "hello")])
        times.append((time.perf_counter() - began) * 1e3)
        session.close()
    return statistics.median(times)


async def long_conversation(endpoint: Sessions) -> list[float]:
    """Measure the milliseconds of each turn of a conversation that grows by some 600 tokens per turn."""
    session = open_session(endpoint, "long")
    messages: list[Message] = []
    times = []
    for turn in range(TURNS):
        messages.append(Message("user", f"{turn} " + "x" * (TURN_TOKENS - 10)))
        began = time.perf_counter()
        messages.append((await session.chat(messages)).message)
        times.append((time.perf_counter() - began) * 1e3)
    assert len(session.recorder.sequences) == 1, "the conversation is one sequence"
    print(f"{'  tokens at its end':<58} {len(session.recorder.sequences[0].token_ids):>9}")
    endpoint.close(session)
    return times


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def litellm(python: str, upstream: str, key: str, folder: Path, exits: AsyncExitStack) -> str:
    """Start the proxy; return its URL once it answers."""
    config = {
        "model_list": [
            {"model_name": "policy", "litellm_params": {"model": "openai/policy", "api_base": upstream, "api_key": key}}
        ]
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
    program = Path(python).parent / "litellm"
    if not program.exists():
        raise SystemExit(f"There is no litellm beside {python}. Install it, and name that interpreter: {INSTALL}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--config", folder / "config.yaml", "--port", str(port), "--host", "127.0.0.1"]
    with (folder / "log").open("wb") as log:
        process = await asyncio.to_thread(
            subprocess.Popen, command, stdout=log, stderr=log, env=env, start_new_session=True
        )

    def end() -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    exits.callback(end)
    for _ in range(600):
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/health/liveliness", None, 2)
            return f"http://127.0.0.1:{port}/v1"
        except OSError:
            await asyncio.sleep(0.2)
    raise SystemExit("litellm does not answer: " + (folder / "log").read_text()[-2000:])


def print_row(what: str, value: float, unit: str) -> None:
    """A row."""
    print(f"{what:<58} {value:>9.2f} {unit}", flush=True)


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litellm", metavar="PYTHON", help="an interpreter that has litellm[proxy]")
    options: Any = parser.parse_args()
    endpoint = Sessions(TOKENIZER, Instant(PluginConfig(), DriverContext()), Hooks())
    async with AsyncExitStack() as exits:
        print_row("a call in process, median", await in_process(endpoint), "ms")
        print(f"a conversation of {TURNS} turns")
        times = await long_conversation(endpoint)
        for turn in (10, 50, TURNS):
            print_row(f"  turn {turn}", statistics.median(times[turn - 5 : turn]), "ms")
        server = await exits.enter_async_context(SessionServer())
        url = f"{server.origin}/v1"
        keys = [exits.enter_context(server.open(open_session(endpoint, f"s{i}"))).api_key for i in range(AT_ONCE)]
        one = await load(url, keys[:1], 1, 500)
        print_row("a call over HTTP, one at a time, median", one["median_ms"], "ms")
        before = resident_bytes()
        many = [open_session(endpoint, f"idle{i}") for i in range(5000)]
        print_row("memory of an idle session", (resident_bytes() - before) / len(many) / 1024, "KiB")
        folder = Path(tempfile.mkdtemp(prefix="ale-bench-endpoint-"))
        exits.callback(shutil.rmtree, folder, True)
        proxy = None
        if options.litellm is None:
            print(f"litellm is left out; to compare with it: {INSTALL}; then --litellm /tmp/litellm/bin/python")
        else:
            proxy = await litellm(options.litellm, url, keys[0], folder, exits)
            await load(proxy, [keys[0]], 8, 100)
            theirs = await load(proxy, [keys[0]], 1, 200)
            print_row("  a call through litellm, one at a time, median", theirs["median_ms"], "ms")
        ratios = []
        for _ in range(3):
            ours = await load(url, keys, AT_ONCE, REQUESTS)
            print_row(f"over HTTP, {AT_ONCE} sessions at once", ours["per_s"], "requests/s")
            if proxy is not None:
                theirs = await load(proxy, [keys[0]], AT_ONCE, REQUESTS // 10)
                print_row("  the same through litellm", theirs["per_s"], "requests/s")
                ratios.append(ours["per_s"] / theirs["per_s"])
        if ratios:
            print(f"times litellm's throughput: {statistics.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})")


if __name__ == "__main__":
    asyncio.run(main())
