"""What the tests of the file protocol share: the service in a process of its own, and who asks it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
from support.ports import held_port

from ale.registry.hooks import Hooks
from ale.session.session import RecordedSession, Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale_endpoint.relays import script
from ale_endpoint.relays.request_log import Log, Record, append, encode, parse


class Service:
    """The service of a log, in a process that can be killed and started again; on the same port."""

    def __init__(self, log: Path, *options: str) -> None:
        self.log, self.options, self.port = log, options, 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it listens."""
        program = self.log.with_name("files.py")
        program.write_text(script("files"))
        command = [sys.executable, "-I", str(program), str(self.log), "--port", str(self.port), *self.options]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        assert self.process.stdout is not None
        line = (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode()
        assert line.startswith("listening on http://127.0.0.1:"), await self.complaints()
        self.port = int(line.split()[2].rsplit(":", 1)[1])

    async def kill(self) -> None:
        """As `kill -9` does."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def complaints(self) -> str:
        """End it; what it said of faults."""
        assert self.process is not None
        assert self.process.stderr is not None
        if self.process.returncode is None:
            self.process.terminate()
        said = await asyncio.wait_for(self.process.stderr.read(), 60)
        await self.process.wait()
        return said.decode()

    def client(self) -> httpx.AsyncClient:
        """One that asks it."""
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=30)

    async def ask(self, text: str, **more: Any) -> httpx.Response:
        """One model call."""
        async with self.client() as client:
            return await client.post("/v1/chat/completions", json=body_of(text, **more))

    def openai(self, key: str = "none") -> openai.AsyncOpenAI:
        """The official client."""
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        url = f"http://127.0.0.1:{self.port}/v1"
        return openai.AsyncOpenAI(base_url=url, api_key=key, http_client=http, max_retries=0)


@asynccontextmanager
async def serving(log: Path, *options: str) -> AsyncIterator[Service]:
    """A service that is ended."""
    service = Service(log, *options)
    with held_port() as service.port:
        await service.start()
        try:
            yield service
        finally:
            await service.kill()


def body_of(text: str, **more: Any) -> dict[str, Any]:
    """A request that says something."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def completion(text: str) -> dict[str, Any]:
    """An answer that says something."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], "usage": usage}


def records(log: Path) -> list[Record]:
    """Everything that stands in a log."""
    found = [parse(line) for line in Log(str(log)).read()]
    return [record for record in found if record is not None]


def of_kind(log: Path, kind: str) -> list[Record]:
    """The records of a kind."""
    return [record for record in records(log) if record.kind == kind]


async def eventually(condition: Callable[[], object]) -> None:
    """Returns as soon as something holds."""
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def requested(log: Path, count: int) -> list[Record]:
    """The requests of a log, as soon as there are so many."""
    await eventually(lambda: len(of_kind(log, "request")) >= count)
    return of_kind(log, "request")


def respond(log: Path, number: int, text: str) -> None:
    """Answer one as a trainer does."""
    append(str(log), encode("response", completion(text), number))


class Talker(Driver, InferenceEngine):
    """Says how often it was asked; waits where it is told to, and fails where it is told to."""

    max_context = 8192
    version = 3

    def __init__(self) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.requests: list[GenerateRequest] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None
        self.at_work = self.most_at_work = self.cancelled = 0

    async def load_model(self, folder: object, tokenizer: object) -> None: ...

    async def load_weights(self, policy: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests.append(request)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        number = len(self.requests)
        try:
            await (asyncio.sleep(0.02) if self.gate is None else self.gate.wait())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_work -= 1
        if self.error is not None:
            raise self.error
        tokenizer = byte_tokenizer()
        ids = (*tokenizer.encode(f"answer {number}"), *tokenizer.stop_token_ids)
        return Generation(ids, (-0.1,) * len(ids), (3,) * len(ids), "stop")


def session_of(engine: InferenceEngine, **limits: int) -> RecordedSession:
    """A session over an engine."""
    endpoint = Sessions(byte_tokenizer(), engine, Hooks())
    bounds: dict[str, Any] = {"max_calls": 200, "max_context": 8192, **limits}
    return endpoint.open("e", Sampling(max_tokens=200), **bounds)
