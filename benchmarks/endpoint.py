"""Measures the model endpoint with an engine that answers at once: in process, over HTTP, in a long conversation, idle;
and forwarding to another server, beside LiteLLM's proxy and that server itself.

The load comes from a separate process on this machine that writes HTTP/1.1 to sockets, so that it uses little CPU.
`--litellm PYTHON` names an interpreter that has `litellm[proxy]`; without it, the proxy is left out. Both forward from
one process each, and all three are measured one after the other in each of `--rounds` rounds, so that what else runs on
the machine hits all of them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from contenders import proxies

from ale.messages import Message
from ale.registry.hooks import Hooks
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale_endpoint.session_server import SessionServer

AT_ONCE, REQUESTS, TURNS, TURN_TOKENS = 256, 6000, 100, 600
CLIENTS = (1, 16, 64)
FORWARDED = {"direct": 6000, "litellm": 600, "ours": 3000}
"""Requests of one measurement with many clients; with one client it is a third of them."""
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
    p99 = statistics.quantiles(times, n=100)[98]
    found = {"median_ms": statistics.median(times) * 1e3, "p99_ms": p99 * 1e3, "per_s": len(times) / seconds}
    print(json.dumps(found))

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
    session.close()
    return times


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def forwarding(litellm: str | None, rounds: int) -> None:
    """Print throughput and latency of another server, asked directly, through LiteLLM's proxy and through ours."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="ale-bench-endpoint-")))
        direct = await exits.enter_async_context(proxies.upstream())
        urls = {"direct": direct}
        if litellm is None:
            print(f"litellm is left out; to compare with it: {proxies.INSTALL}; then --litellm /tmp/litellm/bin/python")
        else:
            urls["litellm"] = await exits.enter_async_context(proxies.litellm(litellm, direct, folder))
        urls["ours"] = await exits.enter_async_context(proxies.ale(direct, folder))
        for url in urls.values():
            await load(url, ["none"], 8, 100)
        for _ in range(rounds):
            for clients in CLIENTS:
                for who, url in urls.items():
                    requests = FORWARDED[who] // (3 if clients == 1 else 1)
                    found.setdefault((who, clients), []).append(await load(url, ["none"], clients, requests))
    for (who, clients), measured in sorted(found.items(), key=lambda item: item[0][1]):
        rates, lates, medians = ([each[what] for each in measured] for what in ("per_s", "p99_ms", "median_ms"))
        print(f"forwarding, {clients:>2} clients, {who:<8} {spread(rates):>24} requests/s", end="")
        print(f"   median {spread(medians)} ms   p99 {spread(lates)} ms", flush=True)
    for clients in CLIENTS if litellm is not None else ():
        pairs = list(zip(found["ours", clients], found["litellm", clients], strict=True))
        more = [ours["per_s"] / theirs["per_s"] for ours, theirs in pairs]
        late = [ours["p99_ms"] / theirs["p99_ms"] for ours, theirs in pairs]
        print(f"{clients:>2} clients: {spread(more)} times litellm's throughput, {spread(late)} of its p99")


def spread(values: list[float]) -> str:
    """The median, and from where to where the values go."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def print_row(what: str, value: float, unit: str) -> None:
    """A row."""
    print(f"{what:<58} {value:>9.2f} {unit}", flush=True)


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litellm", metavar="PYTHON", help="an interpreter that has litellm[proxy]")
    parser.add_argument("--rounds", type=int, default=3, help="how often forwarding is measured")
    parser.add_argument("--only-forwarding", action="store_true", help="leave out the rest")
    options: Any = parser.parse_args()
    if not options.only_forwarding:
        await sessions()
    await forwarding(options.litellm, options.rounds)


async def sessions() -> None:
    """Print what a call of a session costs."""
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
        for _ in range(3):
            ours = await load(url, keys, AT_ONCE, REQUESTS)
            print_row(f"over HTTP, {AT_ONCE} sessions at once", ours["per_s"], "requests/s")


if __name__ == "__main__":
    asyncio.run(main())
